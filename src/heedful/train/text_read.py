"""Whether a run's text is still what it was when it was read."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path

from heedful.errors import TextError
from heedful.text import FileSource, open_source
from heedful.text.sources import LeftOutWarning

GONE = "{} is no longer there"


def files_read(sources: tuple[str, ...], include: str) -> dict[str, int] | None:
    """How many files a text has, their bytes, and the time of the newest, in nanoseconds.

    None where it has none, or one of them is a pipe.

    Raises:
        TextError: a file is not there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOutWarning)  # reported when the run was planned
        source = open_source(sources, include)
    if not isinstance(source, FileSource) or source.once:
        return None
    states = [Path(path).stat() for path in source.paths]
    if not all(stat.S_ISREG(state.st_mode) for state in states):
        return None
    newest = max(state.st_mtime_ns for state in states)
    return {"files": len(states), "bytes": sum(s.st_size for s in states), "newest": newest}


def change(
    sources: tuple[str, ...], include: str, title: str, before: dict[str, int] | None
) -> str | None:
    """How a text differs from what it was, which `files_read` gave; None where it does not."""
    try:
        now = files_read(sources, include) if before else None
    except (TextError, OSError):
        return GONE.format(title)
    is_same = now is None or now == before
    return None if is_same else f"{title} has another size or time than when it was read"
