"""The identity of a run, to detect files of another run in its directory.

`config.json` stores checksums of the tokenizer file and the token file: training changes neither.
Files that change later (weights, checkpoints, metrics, the recipe) store the run's identity.
Weights written by another program have no identity and are accepted.

A run that is resumed with other settings starts a *continuation*. The recipe stores its name, and
of the checkpoint that it continues and the weights at that time the step and the continuation.
Checkpoints and weights store the name, so files of other continuations and older ones are detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files.json_files import read_checked_json

CONFIG, RECIPE = "config.json", "state/recipe.json"
# Entries of config.json: the run's identity, and the checksums of its tokenizer and token files
RUN, TOKENIZER, TOKENS = "run", "tokenizer_crc32", "tokens_crc32"
CONTINUATION = "continuation"  # an entry of the recipe, of checkpoints and of weights


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
    """Read the `config.json` of a model, and compare its checksum, if it has one.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_checked_json(directory / CONFIG)


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
        raise foreign_file(path)


def foreign_file(path: Path) -> RunError:
    """Return the error for a file that does not belong to the present state of its run."""
    return RunError(
        f"{path} does not belong to the run that its directory describes",
        cause="a file of another run, of another continuation or of an earlier time, or damage",
        remedy="restore the right file, copy a run with all its files, or train again",
    )


def mark_of(about: Mapping[str, Any]) -> list[Any]:
    """Return the step and the continuation's name in the description of a file."""
    return [about.get("step", 0), about.get(CONTINUATION)]


def read_recipe(directory: Path) -> Any:
    """Return the content of a run's recipe; None if there is no recipe."""
    path = directory / RECIPE
    return read_checked_json(path) if path.is_file() else None


def check_saved(
    path: Path, about: Mapping[str, Any], latest: Mapping[str, Any], directory: Path
) -> None:
    """Raise a `RunError` unless the latest checkpoint or weights belong to a run's present state.

    `about` and `latest` are the descriptions of the file and of the checkpoint; empty if there is
    none. Without a recipe, only the run's identity is compared. A file belongs if this continuation
    saved it, and not before the best step of the checkpoint; or if it is the checkpoint or the
    weights from which the continuation began, and nothing better was saved since.
    """
    if about:
        check_same_run(path, RUN, about.get(RUN), directory)
    recipe = read_recipe(directory)
    if recipe is None:
        return
    try:
        stored = recipe.get(CONTINUATION)
        name, continued, weights = stored or [None, [0, None], [0, None]]
        mark, saved, best = mark_of(about), latest.get("step", 0), latest.get("best_step", -1)
        # Weights are newer than the best of the checkpoint if the run was killed before it saved
        is_new = mark[1] == name and mark[0] >= (saved if best < 0 else best)
        is_kept = mark == (continued if mark == mark_of(latest) else weights)
        is_present = is_new or (is_kept and (saved if best < 0 else best) <= continued[0])
    except (AttributeError, LookupError, TypeError, ValueError):  # entries of wrong types
        is_present = False
    if not is_present:
        raise foreign_file(path)
