"""Who may write in a run's directory, and how one run takes the place of another.

A run that replaces another is prepared in `state/fresh`, and the other one stays until that has its
tokens. Its weights go before the new description comes, so that none ever stands beside the
description of another run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import HeedfulError, SaveError
from heedful.files import alone, check_no_links, saving
from heedful.files.atomic import UNFINISHED
from heedful.files.run_identity import is_described_by_us, read_config
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.train.plan import has_plan
from heedful.train.run_files import LOGS, METRICS, PICTURES, RECIPE, TOKENS, WATCHED

FRESH = "state/fresh"
PREPARED = (RECIPE, TOKENS, "tokenizer.json", "config.json")  # what training begins from
TRAINED = (*CHECKPOINTS.values(), METRICS)  # and what it makes


@contextmanager
def owning(directory: Path) -> Iterator[None]:
    """The directory of a run for this process alone.

    What a killed process left half written is removed first.

    Raises:
        SaveError: another process has it, nothing can be written there, there are files of
            somebody else that a run would replace, or a file of the run is a link.
    """
    written = (*PREPARED, *TRAINED, "state", WATCHED, LOGS, PICTURES)
    check_no_links(directory / name for name in written)
    for pattern in ("state/**/*", f"{WATCHED}/*", f"{LOGS}/*"):  # below, services have their own
        check_no_links(directory.glob(pattern))
    _check_ours(directory)
    with alone(directory / "state"):
        for folder in (directory, directory / "state", directory / WATCHED):
            for left in folder.glob(UNFINISHED):
                left.unlink(missing_ok=True)
        for left in (directory / FRESH, *(directory / SHARDED).glob(".*.part")):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _check_ours(directory: Path) -> None:
    """Refuse a directory in which a run would replace, or remove, what no run has written."""
    theirs = [path for name in (*PREPARED, *TRAINED) if (path := directory / name).exists()]
    theirs += [path for path in (directory / "state").glob("[!.]*") if path.name != "lock"]
    if theirs and not (has_plan(directory) or _is_ours(directory)):
        raise SaveError(
            f"{theirs[0]} is there, and no run of heedful",
            expected="a directory without files of such names",
            remedy="choose another --out",
        )


def _is_ours(directory: Path) -> bool:
    """Whether a `config.json` is one that heedful writes."""
    try:
        return is_described_by_us(read_config(directory))
    except HeedfulError:
        return False


def take_place(directory: Path) -> None:
    """Put the run that is prepared in `state/fresh` in place of the one that is there."""
    fresh = directory / FRESH
    with saving(directory):
        for name in TRAINED:
            (directory / name).unlink(missing_ok=True)
        for name in (SHARDED, WATCHED, LOGS):
            shutil.rmtree(directory / name, ignore_errors=True)
        for name in PREPARED:
            os.replace(fresh / name, directory / name)
        shutil.rmtree(fresh)
