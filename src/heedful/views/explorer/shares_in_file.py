"""Who reads what as a file has it: exact tables of the segments that were marked before."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.recording.progress import Tell
from heedful.recording.segments import TARGET
from heedful.views.explorer.asked import Where
from heedful.views.explorer.shares import Runs, shares
from heedful.views.explorer.text import runs_of
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import packed


def shares_in_file(texts: Texts, calls: list[Where], progress: Tell) -> Iterator[bytes]:
    """A part for each call of a text in which something is marked.

    Args:
        texts: what is shown.
        calls: of which calls.
        progress: is told of the share that is done, 0 to 1.
    """
    about = texts.about()
    for done, where in enumerate(calls):
        call, marks = texts.call(*where), texts.marked(*where[:2])
        reads = about[where[0]]["texts"][where[1]]["calls"][where[2]]["reads"]
        if not reads or not any(marks.values()):
            continue
        _, N, M = call.shape
        queries, keys = (
            _runs(marks[side == TARGET], size) for side, size in zip(reads, (N, M), strict=True)
        )
        try:
            job = shares(call, keys, queries if call.crosses else None)
            for _ in () if job.is_whole else job.steps():
                progress((done + job.done) / len(calls))
        except HeedfulError:  # what was not recorded truthfully; the page says so of its maps
            continue
        words = [_written(keys), _written(queries) if call.crosses else ""]
        name = ".".join(map(str, where))
        yield packed({"part": f"segments {name}", "of": "|".join(words), **job.about},
                     **job.arrays())  # fmt: skip


def _runs(marks: dict[str, Tensor], size: int) -> Runs:
    """The runs of each segment; of a text of which nothing is marked, all of it."""
    if not marks:
        return [[range(size)]]
    return [[range(*run) for run in runs_of(own)] for own in marks.values()]


def _written(segments: Runs) -> str:
    """As the page asks for them: 0-40,50-60;60-80."""
    return ";".join(",".join(f"{run.start}-{run.stop}" for run in runs) for runs in segments)
