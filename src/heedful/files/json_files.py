"""JSON files, plain or with a checksum as the last entry, `crc32`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.atomic import atomic_write, read_error
from heedful.files.checksums import DAMAGE_CAUSE, digits
from heedful.files.small_files import parse_json, read_small

CHECKSUM = "crc32"


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically with a checksum as its last entry, for `read_checked_json`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tea.json"
    >>> write_checked_json(path, {"minutes": 3})
    >>> print(path.read_text(), read_checked_json(path))
    {
      "minutes": 3,
      "crc32": "f597b164"
    }
     {'minutes': 3}
    """
    write_json(path, {**value, CHECKSUM: _checksum(value)})


def _checksum(value: Any) -> str:
    return digits(zlib.crc32(json.dumps(value).encode()))


def read_json(path: Path) -> Any:
    """Read JSON without comparing a checksum.

    Raises:
        RunError: the file is missing, damaged or not regular, or too large or deep (`small_files`).
    """
    try:
        return parse_json(read_small(path).decode())
    except FileNotFoundError:
        raise RunError(
            f"no file {path}",
            expected="a complete directory, made by `heedful train` or in Hugging Face format",
            remedy="check the path, download the directory again, or train again",
        ) from None
    except (ValueError, OSError) as error:
        raise read_error(path, error) from error


def read_checked_json(path: Path) -> Any:
    """Read JSON, compare the checksum of `write_checked_json`, and return the other entries.

    A file without a checksum is accepted without a check.

    Raises:
        RunError: the file is missing or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or CHECKSUM not in value:
        return value
    if value.pop(CHECKSUM) != _checksum(value):
        raise RunError(
            f"{path} is not what was written: its checksum differs",
            cause=f"{DAMAGE_CAUSE}, or an edit by hand",
            remedy=f"copy the file again; after an edit by hand, remove the last entry, {CHECKSUM}",
        )
    return value
