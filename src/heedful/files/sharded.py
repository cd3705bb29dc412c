"""Named tensors that many processes write, each the rows it holds, and any number reads.

DIR/7/shard-00001-….safetensors   what the first process held, and so on
DIR/7/about.json                  the description, and each file's checksum

The newest has the highest number; it is written beside and renamed, and then those before go. The
work is that of `torch.distributed.checkpoint`, here in files of safetensors: its own format has
pickles, which can run any code when they are read.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError, SaveError
from heedful.files.checksums import checksum_of_file, digits
from heedful.files.json_files import read_checked_json, write_checked_json
from heedful.files.tensor_files import AGAIN, description
from heedful.files.whole import damaged, flush, make_directory, saving
from heedful.processes import EndedElsewhereError, Processes

if TYPE_CHECKING:
    from torch import Tensor

ABOUT, PART, PARTS = "about.json", "shard-{:05}-*.safetensors", "shard-*.safetensors"
LATE = 20.0  # seconds until another machine's file must be seen
FILES = "files"  # where a description has their checksums


def save_sharded(
    directory: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], here: Processes
) -> None:
    """Write tensors of which each process holds a part; all of them must call this.

    Raises:
        SaveError: a process cannot write; what was there before still is.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    number = here.first(lambda: _cleared(directory))
    part = directory / f".{number}.part"
    with _told(part, here), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = {name: tensor.detach() for name, tensor in tensors.items()}
        save(ours, storage_writer=HuggingFaceStorageWriter(str(part), save_distributed=True))
        # its own alone: what other machines wrote may not be seen yet
        paths = part.glob(PART.format(here.rank + 1))
        sums = {path.name: digits(checksum_of_file(path)) for path in paths}
    of_all = {name: sum_ for found in here.each(sums) for name, sum_ in found.items()}

    def finish() -> None:
        _await(part, list(of_all))
        write_checked_json(part / ABOUT, {**about, FILES: of_all})
        with saving(directory):
            os.replace(part, directory / str(number))
            flush(directory)
        forget_sharded(directory, but=number)

    here.first(finish)


def _await(part: Path, names: list[str]) -> None:
    """Until all files are seen here: those of other machines come late on a shared disk."""
    last = time.monotonic() + LATE
    while lacking := [name for name in names if not (part / name).is_file()]:
        if time.monotonic() > last:
            raise SaveError(
                f"{part} has not {lacking[0]}, which another process wrote there",
                cause="machines that do not share the run's directory",
                remedy="what was saved before is still there; choose an --out that all of them see",
            )
        time.sleep(0.1)


def _cleared(directory: Path) -> int:
    """A free number, and the place of its parts made; what a killed process left there goes."""
    make_directory(directory)
    with saving(directory):
        for left in directory.glob(".*.part"):
            shutil.rmtree(left)
        number = max(_numbers(directory), default=0) + 1
        (directory / f".{number}.part").mkdir()  # nothing of that name is there, nor a link
    return number


def _numbers(directory: Path) -> list[int]:
    found = directory.glob("[0-9]*") if directory.is_dir() else []
    return sorted(int(path.name) for path in found if path.name.isdigit())


@contextmanager
def _told(part: Path, here: Processes) -> Iterator[None]:
    """Where some of the processes cannot write, each of these says why, and the others nothing."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        with saving(part):
            yield
    except CheckpointException as error:
        if here.is_first:
            shutil.rmtree(part, ignore_errors=True)
        if here.rank not in error.failures:
            raise EndedElsewhereError("another process cannot save its part") from error
        cause, _ = error.failures[here.rank]
        if isinstance(cause, OSError):
            with saving(part):
                raise cause from error
        raise SaveError(
            f"cannot write {part}: {type(cause).__name__}: {cause}",
            cause="a disk that is full, or not shared by all machines",
            remedy="what was saved before is still there",
        ) from error


def newest(directory: Path) -> Path | None:
    """The newest of a directory; None where there is none."""
    numbers = _numbers(directory)
    return directory / str(numbers[-1]) if numbers else None


def latest_of(file: Path, directory: Path) -> Path | None:
    """The later of a file of tensors and the newest place of a directory; None where neither is.

    Both are there only where a kill came just before the older one went.
    """
    place = newest(directory)
    if not file.is_file():
        return place
    if place is None:
        return file
    return max(file, place, key=lambda path: about_tensors(path).get("step", -1))


def about_tensors(path: Path) -> dict[str, Any]:
    """The description of a file of tensors, or of a place that `newest` named."""
    return (about_sharded(path) if path.is_dir() else description(path)) or {}


def forget_sharded(directory: Path, but: int | None = None) -> None:
    """Remove all, or all but one; none is ever there in part under its number."""
    with saving(directory):
        for number in _numbers(directory):
            if number != but:
                going = directory / f".{number}.gone.part"
                os.replace(directory / str(number), going)
                shutil.rmtree(going)
        if but is None and directory.is_dir():
            shutil.rmtree(directory)


def about_sharded(place: Path) -> dict[str, Any]:
    """The description of what stands at a place that `newest` named."""
    about = read_checked_json(place / ABOUT)
    if not isinstance(about, dict) or not isinstance(about.get(FILES), dict):
        raise damaged(place / ABOUT, ValueError("it names no files"), AGAIN)
    return {name: value for name, value in about.items() if name != FILES}


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

    _check(place, here)
    reader = HuggingFaceStorageReader(str(place))
    try:
        there: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        tensors = {name: into(name, tuple(about.size)) for name, about in there.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it reads without asking the other processes
            load(dict(tensors), storage_reader=reader, no_dist=True)
    except RunError:
        raise
    except Exception as error:
        raise damaged(place, error) from error
    return tensors


def _check(place: Path, here: Processes) -> None:
    sums = read_checked_json(place / ABOUT)[FILES]
    names = {path.name for path in place.glob(PARTS)}
    if names != set(sums):
        raise RunError(
            f"{place} has {len(names)} of the {len(sums)} files that were written",
            cause="a copy of some of them",
            remedy=AGAIN,
        )
    for name in sorted(sums)[here.share(len(sums))]:
        if digits(checksum_of_file(place / name)) != sums[name]:
            raise damaged(place / name, ValueError("it is not what was written"), AGAIN)
