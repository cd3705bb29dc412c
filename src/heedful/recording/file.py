"""Saving and loading of recordings: one safetensors file each, with a description in its header.

A tensor is read from the disk when it is first used, so loading is fast. Writing is atomic.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.files import (
    Checksums,
    check_replaceable,
    description,
    is_header_intact,
    read_error,
    read_tensors,
    save_errors,
    save_tensors,
)
from heedful.files.tensor_files import SUMS
from heedful.ops.masks import Causal, Combined, KeyRanges, Mask, Packed, Window
from heedful.recording import file_validation
from heedful.recording.capture import Capture
from heedful.recording.certificate import Check
from heedful.recording.checks import is_integer, texts_of
from heedful.recording.image_patches import Patches
from heedful.recording.images import Images
from heedful.recording.proof import Layout
from heedful.recording.token_labels import Texts, name_ids
from heedful.recording.unpadded import RealTokens, distinct

VERSION = 1
MAX_TOKENS = 1 << 40
IMAGE = "image"  # prefix of the names of image tensors
TENSORS = ("query", "key", "value", "bias", "sinks", "weights", "sums", "ids", "query_ids")
# Fields of a `Capture` that the header contains as JSON
PLAIN = (
    "name", "layer", "pass_index", "kind", "door", "scale", "softcap", "heads", "index", "texts",
    "parts", "first",
)  # fmt: skip
AGAIN, EXPECTED = "record again", "a file written by recording.save"
COPY_AGAIN = "copy it again, or record again"
# Errors that a damaged header may cause
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError)


def save(
    captures: list[Capture], path: Path, texts: Texts, missed: Mapping[str, str] | None = None,
    images: Images | None = None,
) -> None:  # fmt: skip
    """Write calls, token names, missed modules and images; errors as in `Recording.save`."""
    images = images or Images()
    with save_errors(path):
        if path.is_file() and path.stat().st_size:
            check_replaceable(path, "recording")
    for check_file in (images.check_file, *(capture.check_file for capture in captures)):
        check_file()  # else damaged tensors would get valid checksums
    name_ids(texts, captures)  # store a name for each id: loading then needs no tokenizer
    tensors = {f"{IMAGE}.{i}": pixels for i, pixels in enumerate(images.pixels)}
    described = [_describe(capture, str(i), tensors) for i, capture in enumerate(captures)]
    aliases = _aliases(tensors)
    header = {
        "format": "recording", "version": VERSION, "calls": described,
        "images": {"patches": images.patches, "assumed": images.assumed, "seen": images.input_size},
        "missed": dict(missed or {}),
        "tokens": texts.source, "written": texts.target, "unknown": texts.unknown,
        "names": {str(number): name for number, name in texts.names.items()},
        "same": aliases,
    }  # fmt: skip
    save_tensors(path, {name: tensors[name] for name in tensors if name not in aliases}, header)


def _texts_from_data(header: dict[str, Any]) -> Texts:
    names, unknown = header["names"], header["unknown"]
    if not all(isinstance(name, str) for name in names.values()):
        raise ValueError("the names of tokens")
    if unknown is not None and not is_integer(unknown):
        raise ValueError("the id of unknown words")
    names = {int(number): name for number, name in names.items()}
    source, target = texts_of(header["tokens"]), texts_of(header["written"])
    return Texts(source, target, names=names, unknown=unknown)


def _images_from_data(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Images:
    described = header["images"]
    count = sum(name.startswith(f"{IMAGE}.") for name in tensors)
    pixels = [tensors[f"{IMAGE}.{i}"].clone() for i in range(count)]  # for use without checks
    patches = [Patches(*fields) for fields in described["patches"]]
    patches = [cut._replace(before=tuple(cut.before)) for cut in patches]
    size = None if described["seen"] is None else tuple(described["seen"])
    images = Images(pixels, patches, described["assumed"], size)
    file_validation.check_images(images)
    return images


def _missed(header: dict[str, Any]) -> dict[str, str]:
    missed = header["missed"]
    if not all(isinstance(why, str) for why in missed.values()):
        raise ValueError("the reasons for missed modules")
    return missed


def size(capture: Capture) -> int:
    """Return the number of bytes in a call's tensors."""
    tensors: dict[str, Tensor] = {}
    _describe(capture, "", tensors)
    return sum(tensor.nbytes for tensor in tensors.values())


def _aliases(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Map the name of each tensor that shares memory with an earlier one to the earlier name."""
    first: dict[tuple, str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(key, name) != name:
            aliases[name] = first[key]
    return aliases


@torch.inference_mode(False)  # the tensors may be modified later, outside inference mode
def load(path: Path) -> tuple[list[Capture], Texts, dict[str, str], Images]:
    """Read a file that `save` wrote; errors as in `heedful.load`."""
    if path.is_dir():
        is_model = (path / "config.json").is_file()
        cause = "a model, which heedful.load_model or heedful.open opens" if is_model else None
        raise RunError(f"{path} is a directory", expected=EXPECTED, cause=cause)
    if not path.is_file():
        raise RunError(f"no file {path}", expected=EXPECTED, remedy="check the path")
    tensors, header = _read(path)
    try:
        checksums = Checksums(path, dict(tensors), header.get(SUMS, {}), COPY_AGAIN)
        aliases = header["same"]
        tensors |= {name: tensors[first] for name, first in aliases.items()}
        captures = [_restore(call, str(i), tensors) for i, call in enumerate(header["calls"])]
        names: dict[str, list[str]] = {IMAGE: [], **{str(i): [] for i in range(len(captures))}}
        for name in tensors:
            names[name.split(".")[0]].append(aliases.get(name, name))
        for i, capture in enumerate(captures):
            capture.check_file = functools.partial(checksums.check, names[str(i)])
        images = _images_from_data(header, tensors)
        images.check_file = functools.partial(checksums.check, names[IMAGE])
        return captures, _texts_from_data(header), _missed(header), images
    except DAMAGE as error:
        is_missing = isinstance(error, KeyError)
        reason = ValueError(f"no {error} in it") if is_missing else error
        raise read_error(path, reason, AGAIN) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file, after checking its kind and its version."""
    try:
        tensors, header = read_tensors(path)
        is_intact = is_header_intact(path)
    except RunError as error:  # replace its remedy, which is about models
        reason = error.__cause__
        if not isinstance(reason, OSError) and description(path) is None:
            kind = "a text, or a file of another kind" if path.stat().st_size else "an empty file"
            raise RunError(
                f"{path} is not a recording",
                expected=EXPECTED,
                cause=kind,
                remedy="record a model and a text with `heedful record`",
            ) from error
        raise read_error(path, reason if isinstance(reason, Exception) else error, AGAIN) from error
    if is_intact is False:
        raise read_error(path, ValueError("its header is not what was written"), AGAIN)
    if not isinstance(header, dict) or header.get("format") != "recording":
        raise RunError(f"{path} is not a recording", expected=EXPECTED, cause="weights of a model")
    if header.get("version") != VERSION:
        raise RunError(
            f"{path} has version {header.get('version')!r} of the file format",
            expected=f"version {VERSION}",
            remedy="record again, or open it with the version of heedful that wrote it",
        )
    if is_intact is None:
        raise read_error(path, ValueError("its header has lost its checksum"), AGAIN)
    return tensors, header


def _describe(capture: Capture, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    check = dataclasses.asdict(capture.check)  # computed first, because it sets `sums`
    for name in TENSORS:
        tensor = getattr(capture, name)
        if tensor is not None:
            tensors[f"{prefix}.{name}"] = tensor
    shared = distinct(capture.tokens)
    numbers = {id(real): number for number, real in enumerate(shared)}
    tokens = [
        {
            "queries": _indices_as_data(real.queries, f"{prefix}.{number}.queries", tensors),
            "keys": _indices_as_data(real.keys, f"{prefix}.{number}.keys", tensors),
            "mask": _mask_as_data(real.mask, f"{prefix}.{number}.mask", tensors),
        }
        for number, real in enumerate(shared)
    ]
    return {
        **{name: getattr(capture, name) for name in PLAIN},
        "check": check,
        "layout": list(capture.layout),
        "against": {str(row): why for row, why in capture.refutations.items()},
        "tokens": tokens,
        "tokens_of": [numbers[id(real)] for real in capture.tokens],
    }


def _restore(described: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Capture:
    tokens = []
    for real in described["tokens"]:
        queries = _indices(real["queries"], tensors, tensors[f"{prefix}.query"].shape[2])
        keys = _indices(real["keys"], tensors, tensors[f"{prefix}.key"].shape[2])
        tokens.append(RealTokens(queries, keys, _mask_from_data(real["mask"], tensors)))
    capture = Capture(
        **{name: described[name] for name in PLAIN},
        **{name: tensors.get(f"{prefix}.{name}") for name in TENSORS},  # type: ignore[arg-type]
        tokens=[tokens[number] for number in described["tokens_of"]],
        check_source=Check(**described["check"]),
        layout=Layout(*described["layout"]),
        refutations={int(row): str(why) for row, why in described["against"].items()},
    )
    file_validation.check(capture)
    return capture


def _indices_as_data(indices: Tensor, name: str, tensors: dict[str, Tensor]) -> list[int] | str:
    """Return indices as data: [first, last + 1] if consecutive, else the name of their tensor."""
    first = int(indices[0]) if len(indices) else 0
    if torch.equal(indices, torch.arange(first, first + len(indices), device="cpu")):
        return [first, first + len(indices)]
    tensors[name] = indices
    return name


def _indices(data: list[int] | str, tensors: dict[str, Tensor], size: int) -> Tensor:
    if isinstance(data, str):
        return tensors[data].clone()
    first, end = data
    if not 0 <= first <= end <= size:  # before memory for them is allocated
        raise ValueError(f"tokens {first} to {end} of {size}")
    return torch.arange(first, end, device="cpu")


def _mask_as_data(mask: Mask | None, name: str, tensors: dict[str, Tensor]) -> Any:
    if mask is None:
        return None
    if isinstance(mask, Combined):
        return [_mask_as_data(part, f"{name}.{i}", tensors) for i, part in enumerate(mask.parts)]
    if isinstance(mask, Causal):
        return {"causal": mask.offset}
    if isinstance(mask, Window):
        return {"window": mask.size, "offset": mask.offset}
    if isinstance(mask, KeyRanges):
        tensors[name] = torch.stack([mask.first, mask.end])
        return {"runs": name}
    packed = mask if isinstance(mask, Packed) else Packed.of(mask.table)  # type: ignore[attr-defined]
    tensors[name] = packed.bits
    return {"bits": name, "keys": packed.keys}


def _mask_from_data(data: Any, tensors: dict[str, Tensor]) -> Mask | None:
    if data is None:
        return None
    if isinstance(data, list):
        return Combined(tuple(filter(None, (_mask_from_data(part, tensors) for part in data))))
    if "causal" in data:
        return Causal(_offset(data["causal"]))
    if "window" in data:
        return Window(_offset(data["window"]), _offset(data["offset"]))
    if "runs" in data:
        return KeyRanges(*tensors[data["runs"]])
    return Packed(tensors[data["bits"]], data["keys"])


def _offset(number: Any) -> Any:
    """Return a number of tokens, or None; raise a ValueError if tensors cannot have so many."""
    if isinstance(number, int) and abs(number) > MAX_TOKENS:
        raise ValueError(f"a mask with the number {number:.3g}")
    return number
