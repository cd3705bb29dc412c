"""The lock of a run directory, and the replacement of a run by a new one.

The new run is prepared in `state/fresh`. The old run stays until the new text is tokenized. Then
the old weights are removed first, and the new `config.json` is moved to its place last. So weights
and `config.json` always belong to the same run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import SaveError
from heedful.files import check_no_links, directory_lock, save_errors
from heedful.files.atomic import UNFINISHED
from heedful.files.run_identity import RECIPE, RUN, config_entry
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.train.plan import has_plan
from heedful.train.run_files import LOGS, METRICS, PICTURES, TOKENS, WATCHED

FRESH = "state/fresh"
PREPARED = (RECIPE, TOKENS, "tokenizer.json", "config.json")  # files written before training
TRAINED = (*CHECKPOINTS.values(), METRICS)  # files written by training


@contextmanager
def lock_run(directory: Path) -> Iterator[None]:
    """Lock a run directory for this process; remove unfinished files of a killed process.

    Raises:
        SaveError: another process holds the lock, the directory is not writable, a file that the
            run would replace was not written by heedful, or a file of the run is a symbolic link.
    """
    names = (*PREPARED, *TRAINED, "state", WATCHED, LOGS, PICTURES)
    check_no_links(directory / name for name in names)
    for pattern in ("state/**/*", f"{WATCHED}/*", f"{LOGS}/*"):  # logs/*/* belongs to the services
        check_no_links(directory.glob(pattern))
    files = [path for name in (*PREPARED, *TRAINED) if (path := directory / name).exists()]
    files += [path for path in (directory / "state").glob("[!.]*") if path.name != "lock"]
    if files and not (has_plan(directory) or config_entry(directory, RUN)):
        raise SaveError(
            f"{files[0]} exists and is not part of a heedful run",
            expected="a directory without files of these names",
            remedy="choose another --out",
        )
    with directory_lock(directory / "state"):
        for folder in (directory, directory / "state", directory / WATCHED):
            for path in folder.glob(UNFINISHED):
                path.unlink(missing_ok=True)
        for path in (directory / FRESH, *(directory / SHARDED).glob(".*.part")):
            shutil.rmtree(path, ignore_errors=True)
        yield


def replace_run(directory: Path) -> None:
    """Replace the run in a directory by the run in `state/fresh`."""
    fresh = directory / FRESH
    with save_errors(directory):
        for name in TRAINED:
            (directory / name).unlink(missing_ok=True)
        for name in (SHARDED, WATCHED, LOGS):
            shutil.rmtree(directory / name, ignore_errors=True)
        for name in PREPARED:
            os.replace(fresh / name, directory / name)
        shutil.rmtree(fresh)
