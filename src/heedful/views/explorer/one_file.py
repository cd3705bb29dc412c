"""The page as one standalone file, which opens in any browser without a network.

The page computes the weights of a head from its query, key and log-sum-exps. Only as many heads as
the size limit allows have these; every head has a thumbnail and scores (`file_contents.py`).
"""

from __future__ import annotations

import base64
import gzip
import math
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files import atomic_write
from heedful.recording.progress import OnProgress, sub_progress
from heedful.views.bundler import element, one_script, shell
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.file_contents import FileContents, Head
from heedful.views.explorer.stored_inputs import SINGLE, size_of

PAGE = Path(__file__).parent / "page"
STANDALONE = "standalone"  # the style sheet of a page in its own window
SHEETS = (  # in CSS order: of conflicting rules, the last applies
    "base", "toolbar", "heads", "map", "weight", "glossary", "text", "without", "image", "segments",
    "generation", "training_steps", STANDALONE, "panes",
)  # fmt: skip
ENTRY, WORKER = PAGE / "sources" / "file_source.js", PAGE / "sources" / "worker.js"
LIMIT = 25.0  # MB, the default limit
NUMBERS = b'<script type="application/octet-stream" id="numbers">', b"</script>\n"
RESERVED = 4096  # bytes for the description of the file


def write(
    path: Path,
    catalogue: Catalogue,
    title: str,
    progress: OnProgress = lambda share: None,
    *,
    limit: float = LIMIT,
    view: str = "",
) -> tuple[int, str]:
    """Write the page to a file, atomically.

    Args:
        path: the file.
        catalogue: the recordings to show.
        title: the title of the page.
        progress: called with the completed share, 0 to 1.
        limit: the maximum size in MB. Heads with the highest scores are stored first; heads whose
            query and key do not fit have only a thumbnail and scores.
        view: the initial view, the part of its address after "#".

    Returns:
        the size of the file in bytes, and sentences that state which weights the page can compute.

    Raises:
        RunError: a limit that is too small for the thumbnails and scores.
        SaveError: a path that cannot be written.
    """
    room = int(limit * 1e6)
    bits = _bits(catalogue, room)
    contents = FileContents(catalogue, room, bits, sub_progress(progress, 0, 2))
    begin, end = shell(title, ENTRY, styles(), view)
    with atomic_write(path) as file:
        # in a page from a file, browsers start no module worker
        worker = element("worker", one_script(WORKER).replace("export ", "").encode())
        fixed = [begin, worker, *NUMBERS, end, base64.b64encode(contents.deflated({}))]
        remaining = room - RESERVED - sum(map(len, fixed))
        if remaining < 0:
            raise RunError(
                f"{len(contents.heads):,} heads in a page of {limit:g} MB",
                expected=f"at least {(room - remaining) / 1e6:.1f} MB",
                remedy="select fewer with --layers and --heads, or set a larger --limit",
            )
        file.write(begin + worker)
        stored = _write_inputs(file.write, contents, remaining, sub_progress(progress, 1, 2))
        about = _about(contents, stored, bits)
        file.write(base64.b64encode(contents.deflated(about)).join(NUMBERS) + end)
        return file.tell(), about["said"]


def _bits(catalogue: Catalogue, room: int) -> int:
    """Return the bits per number: 32 if they take little room, else 16."""
    needed = sum(size_of(call, SINGLE) for _, call in catalogue.calls())
    return SINGLE if needed <= room / 4 else 16


def _write_inputs(
    write: Callable[[bytes], Any], contents: FileContents, room: int, progress: OnProgress
) -> list[Head]:
    """Write query and key of as many heads as fit into `room` bytes; return these heads."""
    written: set[str] = set()
    stored = []

    def key(head: Head) -> tuple[bool, float]:
        # calls with one query come last: they have many keys, and the stitched map has their rows
        return contents.inputs[head.indices].call.shape[1] == 1, -head.strength

    for number, head in enumerate(sorted(contents.heads, key=key)):
        parts = contents.inputs[head.indices].parts(head.head_index)
        # only the most significant bytes repeat, so run-length encoding suffices
        new = [element(name, parts[name], zlib.Z_RLE) for name in parts.keys() - written]
        if (size := sum(map(len, new))) <= room:
            room -= size
            written |= parts.keys()
            stored.append(head)
            write(b"".join(new))
        elif room < 1000:
            break
        progress((number + 1) / len(contents.heads))
    return stored


def _about(contents: FileContents, stored: list[Head], bits: int) -> dict[str, Any]:
    """Return sentences on how many heads have weights, and the error of rounded weights."""
    inputs = [contents.inputs[indices] for indices in {head.indices for head in stored}]
    deviation = 0.0 if bits == SINGLE else max((entry.difference for entry in inputs), default=0.0)
    count, sentences = len(contents.heads), []
    if errors := len(contents.errors):
        sentences.append(f"{errors} of {len(contents.catalogue.calls())} calls cannot be shown; "
                         "the page gives the reason for each.")  # fmt: skip
    if len(stored) < count:
        sentences.append(
            f"This page computes the weights of {len(stored):,} of {count:,} heads; the others have"
            " a thumbnail and scores. A larger --limit adds heads; the recording has every weight."
        )
    elif count:
        sentences.append("This page computes every weight.")
    if deviation:
        sentences.append(
            "Queries and keys are rounded; in the rows that were compared, weights differ "
            f"from the recording's by at most {_rounded_up(deviation)}."
        )
    return {"said": " ".join(sentences), "difference": deviation}


def _rounded_up(difference: float) -> str:
    """Round up to one digit."""
    digit = 10.0 ** math.floor(math.log10(difference))
    return f"{math.ceil(difference / digit) * digit:.1g}"


def styles() -> list[Path]:
    """Return the style sheets, in CSS order."""
    return [PAGE / "style" / f"{name}.css" for name in SHEETS]


@cache
def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the page's script and style, each with its media type, gzipped.

    >>> list(page_files())
    ['page.js', 'page.css']
    """
    style = "".join(sheet.read_text("utf-8") for sheet in styles())
    script = one_script(PAGE / "sources" / "server_source.js")
    return {
        "page.js": ("text/javascript", gzip.compress(script.encode())),
        "page.css": ("text/css", gzip.compress(style.encode())),
    }
