"""JSON files: plain, in formats of others; and ours, whose last entry, `crc32`, is a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.atomic import damaged, replacing
from heedful.files.checksums import COPIED, digits

CHECKSUM = "crc32"


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """As `write_json`, with a checksum of the content as its last entry; see `read_checked_json`.

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
    """Read JSON; no checksum is compared.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        return json.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise RunError(
            f"no file {path}",
            expected="a whole directory, made by `heedful train` or in Hugging Face format",
            remedy="check the path; fetch it again, or train again",
        ) from None
    except (ValueError, OSError) as error:
        raise damaged(path, error) from error


def read_checked_json(path: Path, is_ours: Callable[[Any], bool] = lambda value: True) -> Any:
    """Read what `write_checked_json` wrote, without its checksum, which is compared.

    A file without a checksum is taken as it is.

    Args:
        path: the file.
        is_ours: whether heedful wrote what was read; what others wrote is not compared.

    Raises:
        RunError: the file is missing or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or CHECKSUM not in value or not is_ours(value):
        return value
    if value.pop(CHECKSUM) != _checksum(value):
        raise RunError(
            f"{path} is not what was written: its checksum does not fit",
            cause=f"{COPIED}, or a change by hand",
            remedy=f"copy it again; after a change by hand, take its last entry, {CHECKSUM}, out",
        )
    return value
