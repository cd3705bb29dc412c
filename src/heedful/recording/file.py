"""Recordings as files: one safetensors file each, with a description of the tensors in its header.

Tensors are read from the disk when they are first used, so a large recording opens at once. Writing
is atomic.
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
IMAGE = "image"  # prefix of the names of image tensors
TENSORS = ("query", "key", "value", "bias", "sinks", "weights", "sums", "ids", "query_ids")
# Fields of a call that the header stores unchanged
PLAIN = (
    "name", "layer", "pass_index", "kind", "door", "scale", "softcap", "heads", "index", "texts",
    "parts", "first",
)  # fmt: skip
AGAIN, EXPECTED = "record again", "a file written by recording.save"
COPY_AGAIN = "copy it again, or record again"
# Errors that reading a changed header may raise
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError)


def save(
    captures: list[Capture], path: Path, texts: Texts, missed: Mapping[str, str] | None = None,
    images: Images | None = None,
) -> None:  # fmt: skip
    """Write calls, token names, missed modules and images; raise the errors of `save_tensors`."""
    images = images or Images()
    with save_errors(path):
        if path.is_file() and path.stat().st_size:
            check_replaceable(path, "recording")
    for check_file in (images.check_file, *(capture.check_file for capture in captures)):
        check_file()  # damaged tensors must not get a new checksum
    name_ids(texts, captures)  # a name for each id, so that opening needs no tokenizer
    tensors = {f"{IMAGE}.{i}": pixels for i, pixels in enumerate(images.pixels)}
    described = [_describe(capture, str(i), tensors) for i, capture in enumerate(captures)]
    same = _shared(tensors)
    about = {
        "format": "recording", "version": VERSION, "calls": described,
        "images": {"patches": images.patches, "assumed": images.assumed, "seen": images.input_size},
        "missed": dict(missed or {}),
        "tokens": texts.source, "written": texts.target, "unknown": texts.unknown,
        "names": {str(number): name for number, name in texts.names.items()},
        "same": same,
    }  # fmt: skip
    save_tensors(
        path, {name: tensor for name, tensor in tensors.items() if name not in same}, about
    )


def _texts_from_data(about: dict[str, Any]) -> Texts:
    names, unknown = about["names"], about["unknown"]
    if not all(isinstance(name, str) for name in names.values()):
        raise ValueError("the names of tokens")
    if unknown is not None and not is_integer(unknown):
        raise ValueError("the id of unknown words")
    names = {int(number): name for number, name in names.items()}
    source, target = texts_of(about["tokens"]), texts_of(about["written"])
    return Texts(source, target, names=names, unknown=unknown)


def _images_from_data(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Images:
    described = about["images"]
    count = sum(name.startswith(f"{IMAGE}.") for name in tensors)
    pixels = [tensors[f"{IMAGE}.{i}"] for i in range(count)]
    patches = [Patches(*fields) for fields in described["patches"]]
    patches = [cut._replace(before=tuple(cut.before)) for cut in patches]
    size = None if described["seen"] is None else tuple(described["seen"])
    images = Images(pixels, patches, described["assumed"], size)
    file_validation.check_images(images)
    return images


def _missed(about: dict[str, Any]) -> dict[str, str]:
    missed = about["missed"]
    if not all(isinstance(why, str) for why in missed.values()):
        raise ValueError("what was missed")
    return missed


def size(capture: Capture) -> int:
    """Return the number of bytes in a call's tensors."""
    tensors: dict[str, Tensor] = {}
    _describe(capture, "", tensors)
    return sum(tensor.nbytes for tensor in tensors.values())


def _shared(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Map each tensor that shares its memory with an earlier one to that one's name."""
    first: dict[tuple, str] = {}
    same = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(key, name) != name:
            same[name] = first[key]
    return same


@torch.inference_mode(False)  # the tensors may be written into later
def load(path: Path) -> tuple[list[Capture], Texts, dict[str, str], Images]:
    """Read a file that `save` wrote; raise the errors of `heedful.load`."""
    if path.is_dir():
        is_model = (path / "config.json").is_file()
        cause = "a model, which heedful.load_model or heedful.open opens" if is_model else None
        raise RunError(f"{path} is a directory", expected=EXPECTED, cause=cause)
    if not path.is_file():
        raise RunError(f"no file {path}", expected=EXPECTED, remedy="check the path")
    tensors, about = _read(path)
    try:
        checksums = Checksums(path, dict(tensors), about.get(SUMS, {}), COPY_AGAIN)
        same = about["same"]
        tensors |= {name: tensors[first] for name, first in same.items()}
        captures = [_restore(call, str(i), tensors) for i, call in enumerate(about["calls"])]
        names: dict[str, list[str]] = {IMAGE: [], **{str(i): [] for i in range(len(captures))}}
        for name in tensors:
            names[name.split(".")[0]].append(same.get(name, name))
        for i, capture in enumerate(captures):
            capture.check_file = functools.partial(checksums.check, names[str(i)])
        images = _images_from_data(about, tensors)
        images.check_file = functools.partial(checksums.check, names[IMAGE])
        return captures, _texts_from_data(about), _missed(about), images
    except DAMAGE as error:
        is_missing = isinstance(error, KeyError)
        reason = ValueError(f"no {error} in it") if is_missing else error
        raise read_error(path, reason, AGAIN) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a recording's file, checked for its version."""
    try:
        tensors, about = read_tensors(path)
        header_is_whole = is_header_intact(path)
    except RunError as error:  # its remedy is about models
        reason = error.__cause__
        if not isinstance(reason, OSError) and description(path) is None:
            kind = "a text, or a file of another kind" if path.stat().st_size else "an empty file"
            raise RunError(
                f"{path} is no recording",
                expected=EXPECTED,
                cause=kind,
                remedy="`heedful record` makes one of a model and a text",
            ) from error
        raise read_error(path, reason if isinstance(reason, Exception) else error, AGAIN) from error
    if header_is_whole is False:
        raise read_error(path, ValueError("its header is not what was written"), AGAIN)
    if not isinstance(about, dict) or about.get("format") != "recording":
        raise RunError(f"{path} is no recording", expected=EXPECTED, cause="weights of a model")
    if about.get("version") != VERSION:
        raise RunError(
            f"{path} is of version {about.get('version')!r} of the format",
            expected=f"version {VERSION}",
            remedy="record again, or open it with the version of heedful that wrote it",
        )
    if header_is_whole is None:
        raise read_error(path, ValueError("its header has lost its checksum"), AGAIN)
    return tensors, about


def _describe(capture: Capture, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    check = dataclasses.asdict(capture.check)  # the check sets `sums`, which are written below
    for name in TENSORS:
        tensor = getattr(capture, name)
        if tensor is not None:
            tensors[f"{prefix}.{name}"] = tensor
    shared = distinct(capture.tokens)
    numbers = {id(real): number for number, real in enumerate(shared)}
    tokens = [
        {
            "queries": _ends(real.queries, f"{prefix}.{number}.queries", tensors),
            "keys": _ends(real.keys, f"{prefix}.{number}.keys", tensors),
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
        queries, keys = (_indices(real[axis], tensors) for axis in ("queries", "keys"))
        tokens.append(RealTokens(queries, keys, _mask_from_data(real["mask"], tensors)))
    capture = Capture(
        **{name: described[name] for name in PLAIN},
        **{name: tensors.get(f"{prefix}.{name}") for name in TENSORS},  # type: ignore[arg-type]
        tokens=[tokens[number] for number in described["tokens_of"]],
        checked=Check(**described["check"]),
        layout=Layout(*described["layout"]),
        refutations={int(row): str(why) for row, why in described["against"].items()},
    )
    file_validation.check(capture)
    return capture


def _ends(indices: Tensor, name: str, tensors: dict[str, Tensor]) -> list[int] | str:
    """Return indices for the header: a run as its two ends, others as the name of a tensor."""
    first = int(indices[0]) if len(indices) else 0
    if torch.equal(indices, torch.arange(first, first + len(indices), device="cpu")):
        return [first, first + len(indices)]
    tensors[name] = indices
    return name


def _indices(data: list[int] | str, tensors: dict[str, Tensor]) -> Tensor:
    if isinstance(data, str):
        return tensors[data]
    first, end = data
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
        return Causal(data["causal"])
    if "window" in data:
        return Window(data["window"], data["offset"])
    if "runs" in data:
        return KeyRanges(*tensors[data["runs"]])
    return Packed(tensors[data["bits"]], data["keys"])
