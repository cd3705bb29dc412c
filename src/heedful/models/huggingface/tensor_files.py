"""Memory-mapped tensors of a directory in Hugging Face format, from one file or shards.

A tensor's data is read when it is used, so a checkpoint of any size opens at once.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.files import load_tensors, read_error, read_json, read_tensors
from heedful.models.huggingface.hub import PICKLED, SAFE


def mapped_tensors(
    directory: Path, allow_pickle: bool = False, verify: bool = False
) -> dict[str, Tensor]:
    """Return all tensors by name, memory-mapped, from safetensors or, if allowed, `.bin` files.

    `.bin` files are pickles, from which only tensors and plain containers are loaded. With
    `verify`, all tensors are read and compared with the checksums that an export of heedful has.
    """
    read, advice = load_tensors if verify else read_tensors, "download or copy it again"
    tensors = _single_or_shards(directory, SAFE, lambda path: read(path, advice)[0])
    if tensors is not None:
        return tensors
    pickled = next(directory.glob(f"{PICKLED}*"), None)
    if pickled is None:
        files = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
        raise RunError(
            f"no weights in {directory}, only {files}",
            expected=f"{SAFE}, or shards with {SAFE}.index.json",
            cause="an interrupted download, or weights in another library's format",
        )
    if not allow_pickle:
        raise RunError(
            f"{pickled} is in a pickled format, which can run code when opened",
            expected="safetensors",
            remedy="if you trust its source, pass --allow-pickle (allow_pickle=True), which loads "
            "only tensors",
        )
    return _single_or_shards(directory, PICKLED, _load_pickle) or {}


def _single_or_shards(
    directory: Path, name: str, open_file: Callable[[Path], Mapping[str, Tensor]]
) -> dict[str, Tensor] | None:
    single, index = directory / name, directory / f"{name}.index.json"
    if single.exists():
        return dict(open_file(single))
    if not index.exists():
        return None
    shard_of = _shard_of(index)
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if not (directory / shard).is_file()]
    if missing:
        raise RunError(
            f"{directory} lacks {', '.join(missing)} of its {len(shards)} shards",
            cause="an interrupted download or copy",
            remedy="download the directory again",
        )
    tensors = {shard: open_file(directory / shard) for shard in shards}
    return {n: tensors[shard][n] for n, shard in shard_of.items() if n in tensors[shard]}


def _shard_of(index: Path) -> dict[str, str]:
    """Return the file of each tensor, from the index of the shards."""
    content = read_json(index)
    shard_of = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shard_of, dict) or any(Path(s).name != s for s in shard_of.values()):
        raise read_error(index, ValueError("no weight_map to files beside it"), "download it again")
    return shard_of


def is_refusal(error: BaseException) -> bool:
    """Return whether torch refused to unpickle a file; its message advises to run the code."""
    return type(error).__name__ == "UnpicklingError"


def pickle_error(path: Path) -> RunError:
    """Return the error for a pickled file that is refused."""
    return RunError(
        f"a pickled file in {path} has more than tensors and plain containers, or is damaged",
        expected="a model's state_dict",
        remedy="use safetensors; heedful never runs the code in pickled files",
    )


def _load_pickle(path: Path) -> dict[str, Tensor]:
    try:  # files of torch before 1.6 are not zip archives, and cannot be memory-mapped
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the age of the format
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # unpickling a damaged file may raise anything
        if is_refusal(error):
            raise pickle_error(path) from error
        raise read_error(path, error, remedy="download it again") from error
    is_tensors = isinstance(content, dict) and all(
        isinstance(tensor, Tensor) for tensor in content.values()
    )
    if not is_tensors:
        raise RunError(f"{path} has no named tensors", expected="a model's state_dict")
    return content
