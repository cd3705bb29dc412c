"""The identity of a run, to detect files of another run in its directory.

`config.json` stores checksums of the tokenizer file and the token file: training changes neither.
Files that change later (weights, checkpoints, metrics, the recipe) store the run's identity.
Weights written by another program have no identity and are accepted.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.json_files import read_checked_json

CONFIG = "config.json"
# Entries of config.json: the run's identity, and the checksums of its tokenizer and token files
RUN, TOKENIZER, TOKENS = "run", "tokenizer_crc32", "tokens_crc32"


def identity(*parts: Any) -> str:
    """Compute the identity of a run: a hash of its initial configuration, passed as JSON values.

    Two runs with the same configuration have the same identity, and byte-identical files.

    >>> identity({"steps": 5}, "ace35fe3")
    'ec4712c2a86913dc'
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def is_heedful_config(description: Any) -> bool:
    """Return whether heedful wrote this content of a `config.json`."""
    kind = description.get("model_type") if isinstance(description, dict) else None
    return str(kind).startswith("heedful-")


def read_config(directory: Path) -> Any:
    """Read the `config.json` of a model; if heedful wrote it, compare its checksum.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_checked_json(directory / CONFIG, is_heedful_config)


def config_entry(directory: Path, entry: str) -> str | None:
    """Return an entry of a run's `config.json`; None if there is no such file or entry."""
    config = read_config(directory) if (directory / CONFIG).is_file() else {}
    return config.get(entry) if is_heedful_config(config) else None


def check_same_run(path: Path, entry: str, value: str | None, directory: Path) -> None:
    """Raise an error if a file's run identity or checksum differs from that in `config.json`.

    Args:
        path: the file.
        entry: `RUN`, `TOKENIZER` or `TOKENS`.
        value: the run identity stored in the file, or the file's checksum.
        directory: the run directory.

    Raises:
        RunError: the file belongs to another run, or `config.json` is damaged.
    """
    expected = config_entry(directory, entry)
    if value != expected and (expected or entry == RUN):
        raise RunError(
            f"{path} does not belong to the run that {directory / CONFIG} describes",
            cause="a file of another run, or a damaged file",
            remedy="restore the right file, copy a run with all its files, or train again",
        )
