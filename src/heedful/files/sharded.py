"""Sharded checkpoints: each process writes its rows; any number of processes can read them.

DIR/7/shard-00001-….safetensors   the rows of rank 0; 00002: of rank 1; …
DIR/7/about.json                  the description, and each file's checksum

The newest checkpoint has the highest number. `torch.distributed.checkpoint` writes and reads the
files, as safetensors: its own format contains pickles, which can execute code when loaded.
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
from heedful.files.atomic import flush_directory, read_error, save_errors
from heedful.files.checksums import checksum_of_file, digits
from heedful.files.json_files import read_checked_json, write_checked_json
from heedful.files.tensor_files import RESTORE, description
from heedful.processes import OtherProcessError, Processes

if TYPE_CHECKING:
    from torch import Tensor

ABOUT, SHARDS = "about.json", "shard-{}-*.safetensors"
FILES = "files"  # the entry of a description that holds the checksums of the files
VISIBLE_WITHIN = 20.0  # seconds to wait for files of other machines to appear on a shared disk


def save_sharded(
    directory: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], process: Processes
) -> None:
    """Write tensors whose rows are sharded over processes; all processes must call this.

    Raises:
        SaveError: this process cannot write; the earlier checkpoint is intact.
        OtherProcessError: another process cannot write.
    """
    from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageWriter, save

    latest = newest(directory)
    number = process.all_gather(int(latest.name) + 1 if latest else 1)[0]  # rank 0 decides
    part = directory / f".{number}.part"
    if process.is_first:
        shutil.rmtree(part, ignore_errors=True)  # remains of a killed process
    process.barrier()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            detached = {name: tensor.detach() for name, tensor in tensors.items()}
            writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
            save(detached, storage_writer=writer)
    except CheckpointException as error:
        if process.rank not in error.failures:
            raise OtherProcessError("another process cannot save its rows") from error
        raise SaveError(
            f"cannot write {part}: {error.failures[process.rank][0]}",
            cause="a disk that is full, or not shared by all machines",
            remedy="files saved earlier are intact",
        ) from error
    # Each process reads only its own files: files of other machines may not be visible yet
    paths = part.glob(SHARDS.format(f"{process.rank + 1:05}"))
    gathered = process.all_gather({path.name: digits(checksum_of_file(path)) for path in paths})
    if process.is_first:
        with save_errors(part):
            sums = {name: checksum for rank in gathered for name, checksum in rank.items()}
            _await_files(part, sums)
            write_checked_json(part / ABOUT, {**about, FILES: sums})
            os.replace(part, directory / str(number))
            flush_directory(directory)
            remove_sharded(directory, keep=number)
    process.barrier()


def _await_files(part: Path, names: Mapping[str, str]) -> None:
    """Wait until all files are visible: on a shared disk, files of other machines appear late."""
    deadline = time.monotonic() + VISIBLE_WITHIN
    while missing := [name for name in names if not (part / name).is_file()]:
        if time.monotonic() > deadline:
            raise SaveError(
                f"{part} lacks {missing[0]}, which another process wrote",
                cause="machines that do not share the run's directory",
                remedy="files saved earlier are intact; choose an --out that all machines share",
            )
        time.sleep(0.1)


def newest(directory: Path) -> Path | None:
    """Return the newest sharded checkpoint in a directory; None if there is none."""
    checkpoints = [path for path in directory.glob("[0-9]*") if path.name.isdigit()]
    return max(checkpoints, key=lambda path: int(path.name), default=None)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the description of a tensor file, or of a sharded checkpoint."""
    if not path.is_dir():
        return description(path) or {}
    about = read_checked_json(path / ABOUT)
    if not isinstance(about, dict) or not isinstance(about.get(FILES), dict):
        raise read_error(path / ABOUT, ValueError("it lists no files"), RESTORE)
    return {name: value for name, value in about.items() if name != FILES}


def remove_sharded(directory: Path, keep: int | None = None) -> None:
    """Remove all sharded checkpoints, or all except the one with the number `keep`."""
    with save_errors(directory):
        for path in directory.glob("[0-9]*"):
            if path.name != str(keep):
                part = directory / f".{path.name}.part"
                os.replace(path, part)  # so that no numbered directory is ever incomplete
                shutil.rmtree(part)


def load_sharded(
    checkpoint: Path, allocate: Callable[[str, tuple[int, ...]], Tensor], process: Processes
) -> dict[str, Tensor]:
    """Read a checkpoint of `save_sharded`; the number of processes may differ.

    Args:
        checkpoint: the directory, from `newest`.
        allocate: takes the name and full shape of a tensor, and returns the tensor to fill; of a
            sharded tensor, each process fills only its own rows.
        process: this process; it verifies its share of the files.

    Raises:
        RunError: a file is missing or damaged.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    sums = read_checked_json(checkpoint / ABOUT)[FILES]
    if {path.name for path in checkpoint.glob(SHARDS.format("*"))} != set(sums):
        raise RunError(
            f"{checkpoint} does not have the {len(sums)} files that were written",
            cause="an incomplete copy",
            remedy=RESTORE,
        )
    for name in sorted(sums)[process.share(len(sums))]:
        if digits(checksum_of_file(checkpoint / name)) != sums[name]:
            error = ValueError("it is not what was written")
            raise read_error(checkpoint / name, error, RESTORE)
    reader = HuggingFaceStorageReader(str(checkpoint))
    try:
        shapes: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        tensors = {name: allocate(name, tuple(about.size)) for name, about in shapes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that no process group is used
            load(dict(tensors), storage_reader=reader, no_dist=True)
    except Exception as error:  # a damaged file whose checksum another process verifies
        raise read_error(checkpoint, error) from error
    return tensors
