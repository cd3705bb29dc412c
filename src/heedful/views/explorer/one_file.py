"""The page as one file that opens anywhere, with no network: modules, style and numbers inside.

What is in it stands in `contents.py`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import BinaryIO, NamedTuple

from heedful.errors import HeedfulError, RunError
from heedful.files import replacing
from heedful.recording import Call
from heedful.recording.progress import Tell
from heedful.views.explorer.answers import Where
from heedful.views.explorer.causes_in_file import SAMPLED, bytes_of, causes_as_data
from heedful.views.explorer.contents import CausesInFile, contents, places
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import packed
from heedful.views.offline_page import element, shell
from heedful.views.one_script import one_script

PAGE = Path(__file__).parent / "page"
ENTRY, WORKER = PAGE / "filed.js", PAGE / "causes.js"
# Bytes of a file: as many as GPT-2's 144 heads need at 512 tokens, in proportion to the rows of
# larger ones, and never more than the last
LEAST, ROWS, MOST = 5_000_000, 12 * 12 * 512, 20_000_000

LARGEST = 300_000_000  # bytes: a browser reads no text of half a gigabyte
FEW = 1_500_000  # bytes of queries and keys that are in every file
NUMBERS = b'<script type="application/octet-stream" id="numbers">', b"</script>\n"


class Written(NamedTuple):
    """What became of a file: its bytes, and in words what of the weights it has."""

    bytes: int
    said: str


def write(
    path: Path,
    recordings: Texts,
    title: str,
    progress: Tell = lambda share: None,
    *,
    exact: bool = False,
    most: int | None = None,
    view: str = "",
) -> Written:
    """Write the page to a file, whole or not at all.

    Args:
        path: the file.
        recordings: what it shows.
        title: of the page.
        progress: is told of the share that is done, 0 to 1.
        exact: with queries and keys in half precision, from which the page computes any weight.
            Where they are few, they are in it without being asked for, in single precision.
        most: bytes that it may have; default by what is recorded.
        view: what is shown first where the page has no address, as the words of one.

    Raises:
        RunError: more than a file can hold.
        SaveError: a place that cannot be written.
    """
    calls = places(recordings)
    check_size(recordings, exact=exact)
    room = most or _budget(recordings)
    few = sum(bytes_of(call, half=False) for _, call in calls) <= min(FEW, room // 4)
    with replacing(path) as file:
        begin, end = shell(title, ENTRY, styles(), view)
        file.write(begin)
        causes = None
        if exact or few:
            causes = _write_causes(file, calls, exact and not few, lambda done: progress(done / 2))
        around = len(begin) + len(end) + sum(map(len, NUMBERS)) + (file.tell() if few else 0)
        ahead = 0.5 if causes else 0.0
        numbers, told = contents(
            recordings,
            (room - around) * 3 // 4,
            lambda done: progress(ahead + (1 - ahead) * done),
            causes,
        )
        file.write(base64.b64encode(numbers).join(NUMBERS) + end)
        return Written(file.tell(), told)


def check_size(recordings: Texts, *, exact: bool) -> None:
    """Refuse, before anything is computed, what would be too large to open.

    Raises:
        RunError: it says how large.
    """
    about = sum(bytes_of(call, half=True) for _, call in places(recordings)) * 4 // 3
    if exact and about > LARGEST:
        raise RunError(
            f"queries and keys of some {about / 1e6:,.0f} MB",
            expected=f"at most {LARGEST / 1e6:,.0f} MB in one file",
            remedy="choose fewer with --layers and --heads, or leave --exact out",
        )


def _write_causes(
    file: BinaryIO, calls: list[tuple[Where, Call]], half: bool, progress: Tell
) -> CausesInFile:
    """Write an element for each call, and one for each array that calls share."""
    start, largest, rows = file.tell(), 0.0, 0
    known: dict[bytes, int] = {}

    def write_part(name: str, data: bytes) -> None:
        file.write(element(name, data))

    # no script of modules: from a file, browsers start no worker of these
    write_part("worker", one_script(WORKER).replace("export ", "").encode())
    for done, (where, call) in enumerate(calls):

        def tell(share: float, done: int = done) -> None:
            progress((done + share) / len(calls))

        try:
            head, arrays, shared, off = causes_as_data(call, half=half, progress=tell)
        except HeedfulError:  # what was not recorded truthfully; the page says so of its maps
            continue
        common = packed({}, **shared)
        digest = hashlib.blake2b(common).digest()
        if digest not in known:
            known[digest] = len(known)
            write_part(f"shared-{known[digest]}", common)
        data = packed({**head, "shared": known[digest]}, **arrays)
        write_part("causes-" + ".".join(map(str, where)), data)
        largest, rows = max(largest, off), rows + min(SAMPLED, call.shape[1]) * call.shape[0]
    return CausesInFile(half, file.tell() - start, largest, rows)


def _budget(recordings: Texts) -> int:
    """How many bytes the file may have."""
    rows = sum(call.shape[0] * call.shape[1] for _, call in places(recordings))
    return min(MOST, max(LEAST, LEAST * rows // ROWS))


def styles() -> list[Path]:
    """The style sheets of the page, in the order of its index."""
    names = re.findall(r'href="/page/(style/[^"]+)"', (PAGE / "index.html").read_text("utf-8"))
    return [PAGE / name for name in names]
