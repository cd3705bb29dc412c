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

from heedful.errors import HeedfulError, SaveError
from heedful.files import alone, check_no_links, saving
from heedful.files.belonging import is_described_by_us, read_config
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.train.paths import LOGS, METRICS, PICTURES, RECIPE, TOKENS, WATCHED
from heedful.train.plan import has_plan, has_run, read_plan

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
        SaveError: another process has it, nothing can be written there, or there are files of
            somebody else that a run would replace.
    """
    check_own_files(directory)
    _check_ours(directory)
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


def check_own_files(directory: Path) -> None:
    """Refuse a run of which a file or a directory that is written is a link; `SaveError`."""
    check_no_links(directory / name for name in (*FILES, "state", WATCHED, LOGS, PICTURES))
    check_no_links((directory / "state").rglob("*"))
    check_no_links((directory / WATCHED).glob("*"))
    check_no_links((directory / LOGS).glob("*"))  # below them services write, in their own way


def _check_ours(directory: Path) -> None:
    """Refuse a directory in which a run would replace, or remove, what no run has written."""
    if has_plan(directory) or _is_ours(directory):
        return
    theirs = [path for name in FILES if (path := directory / name).exists()]
    theirs += [path for path in (directory / "state").glob("[!.]*") if path.name != "lock"]
    if theirs:
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


def _put_in_order(directory: Path) -> list[str]:
    """Finish or undo what a killed process had begun; the directory must be owned."""
    for name in FILES:
        path = directory / name
        for left in path.parent.glob(f".{path.name}.*part*"):
            left.unlink(missing_ok=True)
    for left in (directory / WATCHED).glob(".*.part"):
        left.unlink(missing_ok=True)
    for left in (directory / SHARDED).glob(".*.part"):
        shutil.rmtree(left, ignore_errors=True)
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


def is_of_launch(directory: Path, launch: str | None) -> bool:
    """Whether the run that is there, or is just moving in, was begun by this launch of torchrun."""
    moving = directory / REPLACEMENT
    place = moving if has_plan(moving) else directory
    return launch is not None and has_plan(place) and read_plan(place).launch == launch


def take_place(directory: Path) -> None:
    """Put the run in `state/fresh`, which has a checkpoint, in place of the one that is there.

    The rename is the step at which the one becomes the other; the rest is finished by whoever
    owns the directory next, where this process is killed.
    """
    with saving(directory):
        (directory / FRESH / WATCHED).mkdir(exist_ok=True)  # once it has moved, it is not there
        os.replace(directory / FRESH, directory / REPLACEMENT)
        _move_in(directory)


def _move_in(directory: Path) -> None:
    replacement = directory / REPLACEMENT
    last = CHECKPOINTS["last"]  # or its parts: whichever the new run has, the old one's both go
    for old, new in ((last, SHARDED), *((name, name) for name in CHECKPOINTS.values())):
        if (replacement / new).exists():
            (directory / old).unlink(missing_ok=True)
    if (replacement / last).exists():
        shutil.rmtree(directory / SHARDED, ignore_errors=True)
    for name in (WATCHED, SHARDED):
        if (replacement / name).is_dir():
            shutil.rmtree(directory / name, ignore_errors=True)
            os.replace(replacement / name, directory / name)
    with suppress(OSError):  # something was watched
        (directory / WATCHED).rmdir()
    shutil.rmtree(directory / LOGS, ignore_errors=True)  # services draw another run from now on
    for name in FILES:
        if (replacement / name).exists():
            os.replace(replacement / name, directory / name)
    shutil.rmtree(replacement, ignore_errors=True)
