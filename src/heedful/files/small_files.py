"""Reading of files that others send: regular files only, of limited size and nesting.

A device or a pipe might be read forever, and a large file would fill the memory.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

MAX_SIZE = 1 << 26  # bytes; the tokenizer of a vocabulary of 262,144 takes 33 MB


def check_regular(path: Path) -> None:
    """Raise a `ValueError` for a device, a pipe or a socket; an `OSError` for a missing file."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")


def read_small(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: the file is missing or unreadable.
        ValueError: it is not a regular file, or it is larger than `MAX_SIZE`.
    """
    check_regular(path)
    if (size := path.stat().st_size) > MAX_SIZE:
        raise ValueError(f"it has {size:,} bytes, and at most {MAX_SIZE:,} are read")
    return path.read_bytes()


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return `json.loads(text, **options)`; raise a `ValueError` for text that is not JSON."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None
