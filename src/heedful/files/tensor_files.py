"""Named tensors as safetensors, with checksums of the header and of each tensor.

The format is that of safetensors (Hugging Face), and its library reads it. It is written here, as
the library would write it, but straight to the file that is renamed: the library writes to one of
its own first, as large as the checkpoint, which stays where a process is killed.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError, SaveError
from heedful.files.atomic import damaged, replacing
from heedful.files.checksums import Checksums, checksum_of

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_HEADER = 100_000_000  # bytes, as safetensors itself allows
# Where a header says its own checksum, eight hexadecimal digits that count as zeros in it
CHECKSUM = re.compile(rb'"header_crc32":"([0-9a-f]{8})"')
AGAIN = "copy it again, or go on from a checkpoint that is whole"
SUMS = "sums"  # where a description has the checksums of the tensors
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write named tensors, with a JSON description in the header, as safetensors.

    Raises:
        SaveError: the file cannot be written; what was there before still is.
    """
    ours = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    sums = {name: checksum_of(tensor) for name, tensor in ours.items()}
    with replacing(path) as file:
        in_order = sorted(ours, key=lambda name: (-ours[name].itemsize, name))
        file.write(_made_header(ours, in_order, {**about, SUMS: sums}))
        for name in in_order:
            file.write(_bytes_of(ours[name]))


def _made_header(
    tensors: Mapping[str, Tensor], names: list[str], about: Mapping[str, Any]
) -> bytes:
    """The header of safetensors with the length before it, and its checksum in it."""
    metadata = {"format": "pt", "header_crc32": "0" * 8, "heedful": json.dumps(about)}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        header[name] = {
            "dtype": TYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    content = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    content = len(content).to_bytes(8, "little") + content
    at = content.index(b'"header_crc32":"') + len(b'"header_crc32":"')
    return content[:at] + b"%08x" % zlib.crc32(content) + content[at + 8 :]


def _bytes_of(tensor: Tensor) -> memoryview:
    import torch

    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().data


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors; every checksum that `save_tensors` wrote is compared.

    Raises:
        RunError: the file is missing or damaged.
    """
    tensors, about = read_tensors(path)
    whole = is_header_whole(path)
    if whole is False or not isinstance(about, dict) or (whole is None and SUMS in about):
        raise damaged(path, ValueError("its header is not what was written"))
    Checksums(path, tensors, about.pop(SUMS, {}), AGAIN).check(list(tensors))
    return tensors, about


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and their description as they are in the file: no checksum is compared.

    Raises:
        RunError: the file is missing, or no safetensors.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RunError(
            f"no file {path}",
            cause="training stopped before it was first saved",
            remedy="continue with `heedful train --resume`",
        )
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("heedful", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise damaged(path, error) from error


def is_header_whole(path: Path) -> bool | None:
    """Whether a file's header is what `save_tensors` wrote; None where it has no checksum."""
    with path.open("rb") as file:
        length = file.read(8)
        header = length + file.read(int.from_bytes(length, "little"))
    found = CHECKSUM.search(header)
    if found is None:  # another program's
        return None
    zeros = header[: found.start(1)] + b"0" * 8 + header[found.end(1) :]
    return int(found[1], 16) == zlib.crc32(zeros)


def check_replaceable(path: Path, kind: str) -> None:
    """Refuse to write over anything but a file of tensors of one kind.

    Args:
        path: where something is to be written.
        kind: what the file has to say that it is, as "recording".

    Raises:
        SaveError: something else is there.
    """
    if path.exists() and not (path.is_file() and (description(path) or {}).get("format") == kind):
        raise SaveError(
            f"{path} is there, and is no {kind}",
            expected=f"the name of a new file, or a {kind}, which is replaced",
            remedy="choose another name, in the command another --out",
        )


def description(path: Path) -> dict[str, Any] | None:
    """What `save_tensors` was told about its tensors, whether these are whole or cut.

    Empty where another program wrote the tensors, or the header itself is cut; None where the file
    does not begin as safetensors do.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin = file.read(1)
        if begin != b"{" or length > LONGEST_HEADER:
            return None
        header = begin + file.read(length - 1)
    try:
        about = json.loads(json.loads(header)["__metadata__"]["heedful"])
    except (ValueError, LookupError, TypeError):
        return {}
    return about if isinstance(about, dict) else {}
