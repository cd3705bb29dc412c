"""Whether a run's text is still what it was when it was read."""

from __future__ import annotations

import stat
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from heedful.errors import TextError
from heedful.files.checksums import checksum_of_file, digits
from heedful.text import FileSource, open_source
from heedful.text.sources import LeftOutWarning

GONE = "{} is no longer there"


class TextRead(NamedTuple):
    """What is kept of the files of a text: how many, their bytes, the newest's time, a CRC-32.

    `newest` is in nanoseconds. The checksum goes over the files' own, in their order.
    """

    files: int
    bytes: int
    newest: int
    crc32: str


def text_read(sources: tuple[str, ...], include: str) -> TextRead | None:
    """What the files of a text are now; None where there are none, or one is a pipe.

    Raises:
        TextError: a file is not there, or cannot be read.
    """
    found = _found(sources, include)
    if found is None:
        return None
    paths, read = found
    sums = "".join(digits(checksum_of_file(path)) for path in paths)
    return read._replace(crc32=digits(zlib.crc32(sums.encode())))


def _found(sources: tuple[str, ...], include: str) -> tuple[list[Path], TextRead] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOutWarning)  # told of when the run was planned
        source = open_source(sources, include)
    if not isinstance(source, FileSource) or source.once:
        return None
    paths = [Path(path) for path in source.paths]
    states = [path.stat() for path in paths]
    if not all(stat.S_ISREG(state.st_mode) for state in states):
        return None
    newest = max(state.st_mtime_ns for state in states)
    return paths, TextRead(len(paths), sum(state.st_size for state in states), newest, "")


def change(
    sources: tuple[str, ...], include: str, title: str, before: dict[str, Any] | None
) -> str | None:
    """How a text differs from what was kept of it; None where it does not.

    Files of the same size and time as before are not read again.
    """
    if before is None:
        return None
    try:
        found = _found(sources, include)
        if found is None:
            return None
        kept = TextRead(**before)
        if found[1]._replace(crc32=kept.crc32) == kept:
            return None
        now = text_read(sources, include)
    except TextError:
        return GONE.format(title)
    except (TypeError, OSError):
        return f"{title} cannot be compared with what was read"
    same = now is not None and now._replace(newest=kept.newest) == kept
    return None if same else f"{title} has changed since it was read"
