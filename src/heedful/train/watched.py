"""What a run has of a text that was watched: at which steps, the scores, the recordings.

DIR/metrics.jsonl                       a line for each moment: the scores of every head
DIR/watched/step-00000512.safetensors   the attention on the text after 512 steps

It knows no recorder, so that a run that is not watched starts no later.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from heedful.files import saving
from heedful.train.plan import WATCHED

NAMES = re.compile(r"step-(\d+)\.safetensors")
SCORES = ("entropy", "previous", "induction", "sink")
LOGIT = "largest_logit"
MOST = 24  # moments, where the user chose none


@dataclasses.dataclass(frozen=True)
class Watched:
    """The heads were looked at: each score by its name, for each call of attention and its heads.

    `scores` has entropy, previous, induction and sink, as `heedful heads` defines them, and
    largest_logit, the largest scaled product of a query and a key before softmax; None where the
    text says nothing of one, as of induction where no token comes again.
    """

    step: int
    scores: dict[str, list[list[float | None]]]


def moments(steps: int, most: int = MOST, every: int = 0) -> list[int]:
    """At which steps the heads are looked at: dense at first, each √2 times the one before.

    Where that is more often than `most`, each 2^¾ times, 2 times and so on; the first and the last
    step are always there.

    >>> moments(800)
    [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724, 800]
    >>> moments(800, most=9), moments(800, every=300)
    ([0, 1, 3, 8, 23, 64, 181, 512, 800], [0, 300, 600, 800])
    """
    if every:
        return sorted({*range(0, steps, every), steps})
    ends = {0, steps}
    if most <= len(ends):
        return sorted(ends)
    for quarters in count(2):
        powers = (round(2 ** (quarters * n / 4)) for n in count())
        found = {*takewhile(lambda step: step < steps, powers)} | ends
        if len(found) <= most:
            break
    return sorted(found)


def recordings_of(directory: Path) -> dict[int, Path]:
    """The recordings of a run that was watched, by their steps, in order."""
    found = {NAMES.fullmatch(path.name): path for path in (directory / WATCHED).glob("step-*")}
    return dict(sorted((int(name[1]), path) for name, path in found.items() if name))


def recording_path(directory: Path, step: int) -> Path:
    """Where the recording of a moment is."""
    return directory / WATCHED / f"step-{step:08}.safetensors"


def forget_after(directory: Path, step: int) -> None:
    """Remove the recordings of later steps, as a run that goes back does with their metrics."""
    for at, path in recordings_of(directory).items():
        if at > step:
            with saving(path):
                path.unlink()


def scores_over_steps(
    metrics: Iterable[Mapping[str, Any]],
) -> tuple[list[int], dict[str, list[list[list[float | None]]]]]:
    """The steps at which a run was watched, and each score at each of them, from its metrics."""
    lines = [line for line in metrics if WATCHED in line]
    scores = {name: [line[WATCHED][name] for line in lines] for name in (*SCORES, LOGIT)}
    return [line["step"] for line in lines], scores
