"""The page as one file that opens anywhere, with no network: modules, style and numbers inside.

Weights are computed in the page, from query, key and log-sum-exp. A limit of bytes decides how many
heads have these; every head has its picture and its scores (`file_contents.py`).
"""

from __future__ import annotations

import base64
import gzip
import math
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from heedful.errors import RunError
from heedful.files import replacing
from heedful.recording.progress import Tell, within
from heedful.views.bundler import element, one_script, shell
from heedful.views.explorer.catalogue import Texts
from heedful.views.explorer.file_contents import Contents, Head
from heedful.views.explorer.stored_inputs import SINGLE, Inputs, bytes_of

PAGE = Path(__file__).parent / "page"
ALONE = "standalone"  # the sheet of a page that has a window to itself
# In their order: of equal rules the later one counts
SHEETS = (
    "base", "toolbar", "heads", "map", "weight", "glossary", "text", "image", "segments",
    "generation", "training_steps", ALONE, "tour",
)  # fmt: skip
ENTRY, WORKER = PAGE / "sources" / "file_source.js", PAGE / "sources" / "worker.js"
LIMIT = 25.0  # MB of a file, where nothing else is told
NUMBERS = b'<script type="application/octet-stream" id="numbers">', b"</script>\n"
AROUND = 4096  # bytes that are left for what is told of the file


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
    limit: float = LIMIT,
    view: str = "",
) -> Written:
    """Write the page to a file, whole or not at all.

    Args:
        path: the file.
        recordings: what it shows.
        title: of the page.
        progress: is told of the share that is done, 0 to 1.
        limit: MB that it may have. Heads that are most of one kind come first, and those for whose
            query and key no room is left have a picture and scores alone.
        view: what is shown first where the page has no address, as the words of one.

    Raises:
        RunError: a limit in which there is no room even for pictures and scores.
        SaveError: a place that cannot be written.
    """
    room = int(limit * 1e6)
    bits = _bits(recordings, room)
    contents = Contents(recordings, room, bits, within(progress, 0, 2))
    begin, end = shell(title, ENTRY, styles(), view)
    with replacing(path) as file:
        # no script of modules: from a file, browsers start no worker of these
        worker = element("worker", one_script(WORKER).replace("export ", "").encode())
        fixed = [begin, worker, *NUMBERS, end, base64.b64encode(contents.deflated({}))]
        left = room - AROUND - sum(map(len, fixed))
        if left < 0:
            raise RunError(
                f"{len(contents.heads):,} heads in a page of {limit:g} MB",
                expected=f"at least {(room - left) / 1e6:.1f} MB",
                remedy="choose some with --layers and --heads, or a larger --limit",
            )
        file.write(begin + worker)
        held = _write_inputs(file.write, contents, left, within(progress, 1, 2))
        about = _about(contents, held, bits)
        file.write(base64.b64encode(contents.deflated(about)).join(NUMBERS) + end)
        return Written(file.tell(), about["said"])


def _bits(recordings: Texts, room: int) -> int:
    """Bits of a number: single precision where that is little, else as many as all heads' fit in.

    Where they do not all fit, more heads are worth more than the sixteenth bit.
    """
    calls = [call for _, call in recordings.calls()]
    needed = {bits: sum(bytes_of(call, bits) for call in calls) for bits in (SINGLE, 16)}
    if needed[SINGLE] <= room / 4:
        return SINGLE
    return 16 if needed[16] <= 0.95 * room else 15


def _write_inputs(
    write: Callable[[bytes], Any], contents: Contents, room: int, progress: Tell
) -> list[Head]:
    """Write query and key of heads as long as there is room; which heads have them."""
    written: set[str] = set()
    held = []

    def key(head: Head) -> tuple[bool, float]:
        # rows of a generation that is there as one, too, come last: each has all keys before it
        return contents.inputs[head.where].call.shape[1] == 1, -head.strength

    for done, head in enumerate(sorted(contents.heads, key=key)):
        parts = contents.inputs[head.where].parts(head.place)
        # numbers that have nothing in common but their first bytes repeat nothing
        new = [element(name, parts[name], zlib.Z_RLE) for name in parts.keys() - written]
        if (size := sum(map(len, new))) <= room:
            room -= size
            written |= parts.keys()
            held.append(head)
            write(b"".join(new))
        elif room < 1000:
            break
        progress((done + 1) / len(contents.heads))
    return held


def _about(contents: Contents, held: list[Head], bits: int) -> dict[str, Any]:
    """What the page says of itself: in words, and how far its weights are from the recording's."""
    computed: list[Inputs] = [contents.inputs[where] for where in {head.where for head in held}]
    off = 0.0 if bits == SINGLE else max((inputs.difference for inputs in computed), default=0.0)
    count, words = len(contents.heads), []
    if wrong := len(contents.wrong):
        words.append(f"{wrong} of {len(contents.texts.calls())} calls cannot be shown; "
                     "the page says why.")  # fmt: skip
    if len(held) < count:
        words.append(
            f"This page has query and key of {len(held):,} of {count:,} heads, and of all heads "
            "pictures and scores. A larger --limit has more; the recording has every weight."
        )
    elif count:
        words.append("This page computes every weight.")
    if off:
        words.append(f"Weights are within {_rounded_up(off)} of the recording's, where compared.")
    return {"said": " ".join(words), "difference": off}


def _rounded_up(difference: float) -> str:
    """One digit, and never less than it is."""
    digit = 10.0 ** math.floor(math.log10(difference))
    return f"{math.ceil(difference / digit) * digit:.1g}"


def styles() -> list[Path]:
    """The style sheets, in their order."""
    return [PAGE / "style" / f"{name}.css" for name in SHEETS]


@cache
def served() -> dict[str, tuple[str, bytes]]:
    """What a server answers, with its type, packed by gzip: two files, so that few are waited for.

    >>> list(served())
    ['page.js', 'page.css']
    """
    style = "".join(sheet.read_text("utf-8") for sheet in styles())
    script = one_script(PAGE / "sources" / "server_source.js")
    return {
        "page.js": ("text/javascript", gzip.compress(script.encode())),
        "page.css": ("text/css", gzip.compress(style.encode())),
    }
