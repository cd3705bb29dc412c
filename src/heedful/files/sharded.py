"""Named tensors that many processes write, each the rows it holds, and any number reads.

DIR/7/shard-00001-….safetensors   what the first process held, and so on
DIR/7/about.json                  the description, and each file's checksum

The newest has the highest number. Writing and reading are `torch.distributed.checkpoint`'s, in
files of safetensors: its own format has pickles, which can run any code when they are read.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError, SaveError
from heedful.files.atomic import damaged, flush, saving
from heedful.files.checksums import checksum_of_file, digits
from heedful.files.json_files import read_checked_json, write_checked_json
from heedful.files.tensor_files import AGAIN, description
from heedful.processes import EndedElsewhereError, Processes

if TYPE_CHECKING:
    from torch import Tensor

ABOUT, SHARDS = "about.json", "shard-{}-*.safetensors"
FILES = "files"  # where a description has their checksums
LATE = 20.0  # seconds until the file of another machine must be seen


def save_sharded(
    directory: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], here: Processes
) -> None:
    """Write tensors of which each process holds a part; all processes call this.

    Raises:
        SaveError: a process cannot write; what was there before still is.
    """
    from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageWriter, save

    place = newest(directory)
    number = here.each(int(place.name) + 1 if place else 1)[0]  # as the first process sees it
    part = directory / f".{number}.part"
    if here.is_first:
        shutil.rmtree(part, ignore_errors=True)  # what a killed process left
    here.wait()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            detached = {name: tensor.detach() for name, tensor in tensors.items()}
            writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
            save(detached, storage_writer=writer)
    except CheckpointException as error:
        if here.rank not in error.failures:
            raise EndedElsewhereError("another process cannot save its part") from error
        raise SaveError(
            f"cannot write {part}: {error.failures[here.rank][0]}",
            cause="a disk that is full, or not shared by all machines",
            remedy="what was saved before is still there",
        ) from error
    # of its own files alone: those of other machines may not be seen yet
    paths = part.glob(SHARDS.format(f"{here.rank + 1:05}"))
    each = here.each({path.name: digits(checksum_of_file(path)) for path in paths})
    if here.is_first:
        with saving(part):
            sums = {name: sum_ for of_process in each for name, sum_ in of_process.items()}
            _await(part, sums)
            write_checked_json(part / ABOUT, {**about, FILES: sums})
            os.replace(part, directory / str(number))
            flush(directory)
            forget_sharded(directory, but=number)
    here.wait()


def _await(part: Path, names: Mapping[str, str]) -> None:
    """Wait until all files are seen here: those of other machines come late on a shared disk."""
    last = time.monotonic() + LATE
    while missing := [name for name in names if not (part / name).is_file()]:
        if time.monotonic() > last:
            raise SaveError(
                f"{part} has not {missing[0]}, which another process wrote",
                cause="machines that do not share the run's directory",
                remedy="what was saved before is still there; choose an --out that all of them see",
            )
        time.sleep(0.1)


def newest(directory: Path) -> Path | None:
    """The newest place of a directory; None where there is none."""
    places = [path for path in directory.glob("[0-9]*") if path.name.isdigit()]
    return max(places, key=lambda path: int(path.name), default=None)


def latest_of(file: Path, directory: Path) -> Path | None:
    """The later of a file of tensors and the newest place of a directory; None where neither is.

    Both are there only where a kill came just before the older one was removed.
    """
    there = [path for path in (newest(directory), file) if path is not None and path.exists()]
    return max(there, key=lambda path: about_tensors(path).get("step", -1), default=None)


def about_tensors(path: Path) -> dict[str, Any]:
    """The description of a file of tensors, or of a place from `newest`."""
    if not path.is_dir():
        return description(path) or {}
    about = read_checked_json(path / ABOUT)
    if not isinstance(about, dict) or not isinstance(about.get(FILES), dict):
        raise damaged(path / ABOUT, ValueError("it names no files"), AGAIN)
    return {name: value for name, value in about.items() if name != FILES}


def forget_sharded(directory: Path, but: int | None = None) -> None:
    """Remove all places, or all but one; no number ever stands for a part of one."""
    with saving(directory):
        for path in directory.glob("[0-9]*"):
            if path.name != str(but):
                going = directory / f".{path.name}.part"
                os.replace(path, going)
                shutil.rmtree(going)


def load_sharded(
    place: Path, into: Callable[[str, tuple[int, ...]], Tensor], here: Processes
) -> dict[str, Tensor]:
    """Read what `save_sharded` wrote, by any number of processes.

    Args:
        place: from `newest`.
        into: a tensor to fill, by name and whole shape; of one that is cut among processes each
            reads the rows it holds.
        here: checks its share of the checksums.

    Raises:
        RunError: a file is missing or damaged.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    sums = read_checked_json(place / ABOUT)[FILES]
    if {path.name for path in place.glob(SHARDS.format("*"))} != set(sums):
        raise RunError(
            f"{place} has not the {len(sums)} files that were written",
            cause="a copy of some of them",
            remedy=AGAIN,
        )
    for name in sorted(sums)[here.share(len(sums))]:
        if digits(checksum_of_file(place / name)) != sums[name]:
            raise damaged(place / name, ValueError("it is not what was written"), AGAIN)
    reader = HuggingFaceStorageReader(str(place))
    try:
        shapes: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        tensors = {name: into(name, tuple(about.size)) for name, about in shapes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it reads without asking the other processes
            load(dict(tensors), storage_reader=reader, no_dist=True)
    except Exception as error:  # of a file whose checksum another process compares
        raise damaged(place, error) from error
    return tensors
