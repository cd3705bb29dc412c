"""Which files are one run's: its `config.json` says of the others what they must be.

What is written once, before `config.json`, is known by its checksum; what changes later (weights,
checkpoints, metrics, the recipe) names the run. Weights that another program wrote name none, and
are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.json_files import read_checked_json

CONFIG = "config.json"
# Its entries: the run's identity, and the checksums of its tokenizer's file and of its tokens
RUN, TOKENIZER, TOKENS = "run", "tokenizer_crc32", "tokens_crc32"


def identity(*parts: Any) -> str:
    """What a run is called in its files, by all that it begins with, which JSON can hold.

    What begins alike is called alike: the same run, made twice, has the same bytes.

    >>> identity({"steps": 5}, "ace35fe3")
    'ec4712c2a86913dc'
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def is_described_by_us(description: Any) -> bool:
    """Whether the content of a `config.json` is what heedful writes."""
    kind = description.get("model_type") if isinstance(description, dict) else None
    return str(kind).startswith("heedful-")


def read_config(directory: Path) -> Any:
    """The `config.json` of a model's directory; one of heedful's is compared with its checksum.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_checked_json(directory / CONFIG, is_described_by_us)


def said(directory: Path, entry: str) -> str | None:
    """What the `config.json` of a run says of a file; None where it says nothing."""
    about = read_config(directory) if (directory / CONFIG).is_file() else {}
    return about.get(entry) if is_described_by_us(about) else None


def check_belongs(path: Path, entry: str, found: str | None, directory: Path) -> None:
    """Refuse a file that is not what its run's `config.json` says.

    Args:
        path: the file.
        entry: `RUN`, `TOKENIZER` or `TOKENS`.
        found: the run that the file names, or its checksum.
        directory: the run's.

    Raises:
        RunError: it is another one.
    """
    wanted = said(directory, entry)
    if found != wanted and (wanted or entry == RUN):
        raise RunError(
            f"{path} is not of the run that {directory / CONFIG} describes",
            cause="another run's file, or a damaged one",
            remedy="put back its own, copy a run with all its files, or train again",
        )
