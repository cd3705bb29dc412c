"""Safetensors files with checksums of the header and of each tensor.

The library `safetensors` (Hugging Face) reads the files. This module writes them itself,
to the temporary file of `atomic_write`. The library would first write another temporary file, as
large as the checkpoint, which remains on disk if the process is killed.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError, SaveError
from heedful.files.atomic import atomic_write, read_error
from heedful.files.checksums import Checksums, bytes_of, checksum_of
from heedful.files.small_files import parse_json

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER = 100_000_000  # bytes; the limit of safetensors
# The header's own checksum, computed with these eight hexadecimal digits set to zero
CHECKSUM = re.compile(rb'"header_crc32":"([0-9a-f]{8})"')
RESTORE = "copy it again, or continue from an intact checkpoint"
SUMS = "sums"  # the entry of a description that holds the checksums of the tensors
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write named tensors as safetensors, with a JSON description in the header.

    Raises:
        SaveError: the file cannot be written; an earlier file is intact.
    """
    dense = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    sums = {name: checksum_of(tensor) for name, tensor in dense.items()}
    with atomic_write(path) as file:
        names = sorted(dense, key=lambda name: (-dense[name].itemsize, name))
        file.write(_header(dense, names, {**about, SUMS: sums}))
        for name in names:
            file.write(bytes_of(dense[name]))


def _header(tensors: Mapping[str, Tensor], names: list[str], about: Mapping[str, Any]) -> bytes:
    """Return a safetensors header, preceded by its length; it contains its own checksum."""
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
    checksum = b"%08x" % zlib.crc32(content)
    return content.replace(b'"header_crc32":"00000000', b'"header_crc32":"' + checksum, 1)


def load_tensors(path: Path, remedy: str = RESTORE) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the description of a file; verify the file's checksums, if it has any.

    Raises:
        RunError: the file is missing or damaged; the error gives the advice `remedy`.
    """
    tensors, about = read_tensors(path, remedy)
    intact = is_header_intact(path)
    if intact is False or not isinstance(about, dict) or (intact is None and SUMS in about):
        raise read_error(path, ValueError("its header is not what was written"), remedy)
    Checksums(path, tensors, about.pop(SUMS, {}), remedy).check(list(tensors))
    return tensors, about


def read_tensors(path: Path, remedy: str = RESTORE) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the description of a file, without verifying checksums.

    Raises:
        RunError: the file is missing, or is not in safetensors format.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RunError(
            f"no file {path}",
            cause="training stopped before its first checkpoint",
            remedy="continue with `heedful train --resume`",
        )
    try:
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {}).get("heedful", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise read_error(path, error, remedy) from error


def is_header_intact(path: Path) -> bool | None:
    """Return whether a file's header matches its checksum; None if it has no checksum."""
    with path.open("rb") as file:
        length = file.read(8)
        header = length + file.read(int.from_bytes(length, "little"))
    match = CHECKSUM.search(header)
    if match is None:  # written by another program
        return None
    zeroed = header[: match.start(1)] + b"0" * 8 + header[match.end(1) :]
    return int(match[1], 16) == zlib.crc32(zeroed)


def check_replaceable(path: Path, kind: str) -> None:
    """Raise an error if a path exists, unless it is a tensor file of this kind.

    Args:
        path: the file to write.
        kind: the kind that an existing file must declare, such as "recording".

    Raises:
        SaveError: the path exists and is not of this kind.
    """
    if path.exists() and (description(path) or {}).get("format") != kind:
        raise SaveError(
            f"{path} exists and is not a {kind}",
            expected=f"the name of a new file, or a {kind}, which is replaced",
            remedy="choose another name (in the command: another --out)",
        )


def description(path: Path) -> dict[str, Any] | None:
    """Read the description in a file's header, even if the tensors are truncated.

    Returns:
        the description; empty if another program wrote the file or its header is truncated; None
        if this is not a safetensors file.
    """
    if not path.is_file():  # opening a pipe would wait for its writer
        return None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin = file.read(1)
        if begin != b"{" or length > MAX_HEADER:
            return None
        header = begin + file.read(length - 1)
    try:
        about = parse_json(parse_json(header)["__metadata__"]["heedful"])
    except (ValueError, LookupError, TypeError):
        return {}
    return about if isinstance(about, dict) else {}
