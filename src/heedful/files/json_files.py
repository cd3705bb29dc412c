"""JSON files: plain, in formats of others; and ours, whose last entry, `crc32`, is a checksum."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.checksums import COPIED, digits
from heedful.files.whole import damaged, replacing

CHECKSUM = "crc32"
# How a file with a checksum ends; the digits count as zeros in it
END = re.compile(rb'[,{]\n  "crc32": "([0-9a-f]{8})"\n\}\n\Z')


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write(_as_bytes(value))


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """As `write_json`, with a checksum of the file as its last entry; see `read_checked_json`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tea.json"
    >>> write_checked_json(path, {"minutes": 3})
    >>> print(path.read_text(), read_checked_json(path))
    {
      "minutes": 3,
      "crc32": "ace35fe3"
    }
     {'minutes': 3}
    """
    content = _as_bytes({**value, CHECKSUM: "0" * 8})
    checksum = digits(zlib.crc32(content)).encode()
    with replacing(path) as file:
        file.write(content[: -len(b'00000000"\n}\n')] + checksum + b'"\n}\n')


def _as_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read JSON; no checksum is compared.

    Raises:
        RunError: the file is missing or damaged.
    """
    return _read(path)[1]


def read_checked_json(path: Path, is_ours: Callable[[Any], bool] = lambda value: True) -> Any:
    """Read what `write_checked_json` wrote, without its checksum, which is compared.

    A file without a checksum is taken as it is.

    Args:
        path: the file.
        is_ours: whether heedful wrote what was read; what others wrote is not compared.

    Raises:
        RunError: the file is missing or damaged.
    """
    content, value = _read(path)
    if not isinstance(value, dict) or CHECKSUM not in value or not is_ours(value):
        return value
    if not _is_whole(content):
        raise RunError(
            f"{path} is not what was written: its checksum does not fit",
            cause=f"{COPIED}, or a change by hand",
            remedy=f"copy it again; after a change by hand, take its last entry, {CHECKSUM}, out",
        )
    del value[CHECKSUM]
    return value


def _read(path: Path) -> tuple[bytes, Any]:
    try:
        content = path.read_bytes()
        return content, json.loads(content.decode())
    except FileNotFoundError:
        raise RunError(
            f"no file {path}",
            expected="a whole directory, made by `heedful train` or in Hugging Face format",
            remedy="check the path; fetch it again, or train again",
        ) from None
    except (ValueError, OSError) as error:
        raise damaged(path, error) from error


def _is_whole(content: bytes) -> bool:
    found = END.search(content)
    if found is None:
        return False
    zeros = content[: found.start(1)] + b"0" * 8 + content[found.end(1) :]
    return int(found[1], 16) == zlib.crc32(zeros)
