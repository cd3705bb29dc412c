"""Who may write in a run's directory, and how one run takes the place of another.

A run that replaces another is made in `state/fresh`, and the other one stays whole until the new
one has a checkpoint. Then `state/fresh` is renamed to `state/replacement`, in one step, and its
files are moved into place; whoever next owns the directory finishes that where a kill stopped it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.files import alone, saving
from heedful.models.configurations import CHECKPOINTS
from heedful.train.plan import METRICS, RECIPE, TOKENS, has_plan, has_run, read_plan

FRESH, REPLACEMENT = "state/fresh", "state/replacement"
# Weights go last, so that none ever stands beside the description of another run
FILES = ("config.json", "tokenizer.json", METRICS, RECIPE, TOKENS, *CHECKPOINTS.values())


@contextmanager
def owning(directory: Path) -> Iterator[list[str]]:
    """The directory of a run for this process alone, in order again after one that was killed.

    What is left at the end of a replacement that never came to a checkpoint is removed, and the
    directories that were made, where nothing was begun in them.

    Yields:
        sentences for the user about what was found.

    Raises:
        SaveError: another process has it, or nothing can be written there.
    """
    state = directory / "state"
    made = [folder for folder in (state, *state.parents) if not folder.exists()]
    try:
        with alone(state):
            try:
                yield _put_in_order(directory)
            finally:
                shutil.rmtree(directory / FRESH, ignore_errors=True)
                if state in made and not has_plan(directory):
                    shutil.rmtree(state, ignore_errors=True)
    finally:
        for folder in made:
            with suppress(OSError):  # something was begun in it
                folder.rmdir()


def _put_in_order(directory: Path) -> list[str]:
    """Finish or undo what a killed process had begun; the directory must be owned."""
    for name in FILES:
        path = directory / name
        for left in path.parent.glob(f".{path.name}.part*"):
            left.unlink(missing_ok=True)
    for left in (directory / "state").glob(".tmp*"):  # by versions that let safetensors write
        left.unlink(missing_ok=True)
    if (directory / REPLACEMENT).is_dir():
        _move_in(directory)
    if not (directory / FRESH).is_dir():
        return []
    begun = _title(directory / FRESH)
    shutil.rmtree(directory / FRESH, ignore_errors=True)
    return [
        f"A run on {begun} was to replace this one, and was stopped before its first checkpoint: "
        f"here is the run on {_title(directory)}, as it was."
    ]


def _title(directory: Path) -> str:
    try:
        return read_plan(directory).title
    except HeedfulError:
        return "a text"


def has_something(directory: Path) -> bool:
    """Whether there is a run to lose, be it only a plan."""
    return has_run(directory) or has_plan(directory)


def take_place(directory: Path) -> None:
    """Put the run in `state/fresh`, which has a checkpoint, in place of the one that is there.

    The rename is the step at which the one becomes the other; the rest is finished by whoever
    owns the directory next, where this process is killed.
    """
    with saving(directory):
        os.replace(directory / FRESH, directory / REPLACEMENT)
        _move_in(directory)


def _move_in(directory: Path) -> None:
    replacement = directory / REPLACEMENT
    for name in CHECKPOINTS.values():
        if (replacement / name).exists():
            (directory / name).unlink(missing_ok=True)
    for name in FILES:
        if (replacement / name).exists():
            os.replace(replacement / name, directory / name)
    shutil.rmtree(replacement, ignore_errors=True)
