"""JSON files: plain, for formats of others, and with a checksum as their last entry, for ours."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.checksums import COPIED, DIGITS, digits
from heedful.files.whole import damaged, replacing

CHECKSUM = "crc32"
# How a file with a checksum ends; the digits count as zeros in it
END = re.compile(rb'[,{]\n  "crc32": "([0-9a-f]{8})"\n\}\n\Z')


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write(_as_bytes(value))


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """As `write_json`, with a checksum of the file as the last entry, which `read_json` compares.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tea.json"
    >>> write_checked_json(path, {"minutes": 3})
    >>> print(path.read_text(), read_json(path))
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
    """Read JSON, and compare its checksum where it has one, which is left out.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        content = path.read_bytes()
        value = json.loads(content.decode())
    except FileNotFoundError:
        raise RunError(
            f"no file {path}",
            expected="a whole directory, made by `heedful train` or in Hugging Face format",
            remedy="check the path; fetch it again, or train again",
        ) from None
    except (ValueError, OSError) as error:
        raise damaged(path, error) from error
    if not _has_checksum(value):
        return value
    if not _is_whole(content):
        raise RunError(
            f"{path} is not what was written: its checksum does not fit",
            cause=f"{COPIED}, or a change by hand",
            remedy="copy it again, or train again",
        )
    del value[CHECKSUM]
    return value


def _has_checksum(value: Any) -> bool:
    """Whether the last entry is a checksum, or was one whose name or digits are damaged."""
    if not isinstance(value, dict) or not value:
        return False
    last = list(value.values())[-1]
    return CHECKSUM in value or (isinstance(last, str) and DIGITS.fullmatch(last) is not None)


def _is_whole(content: bytes) -> bool:
    found = END.search(content)
    if found is None:
        return False
    zeros = content[: found.start(1)] + b"0" * 8 + content[found.end(1) :]
    return int(found[1], 16) == zlib.crc32(zeros)
