"""Validation of a loaded recording: its descriptions must match its tensors."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from heedful.ops.indexing import check_broadcast
from heedful.ops.masks import Combined, Mask, Packed
from heedful.recording.capture import Capture
from heedful.recording.checks import is_integer
from heedful.recording.images import Images
from heedful.recording.pixels import MAX_SIDE
from heedful.recording.proof import LAYOUTS
from heedful.recording.unpadded import RealTokens, distinct

CALL_KINDS = ("self", "causal", "cross")


def check(capture: Capture) -> None:
    """Check a call, except the numbers in its tensors; raise a ValueError that names the field."""
    owner = f" of call {capture.name!r}"
    result, (word, why) = capture.check, capture.layout
    numbers = (capture.index, capture.pass_index, result.rows)
    # `worst` is NaN only if nothing was compared
    is_compared = _is_number(result.worst) and not (result.rows and math.isnan(result.worst))
    _require(owner, {
        "name": isinstance(capture.name, str) and isinstance(capture.door, str),
        "layer": capture.layer is None or is_integer(capture.layer),
        "index, pass or number of rows": all(map(is_integer, numbers)),
        "layout": word in LAYOUTS and isinstance(why, str),
        "numbers of texts": _has_texts(capture),
        "refuted parts": all(0 <= row < len(capture.query) for row in capture.refutations),
        "kind": capture.kind in CALL_KINDS,
        "scale": _is_finite(capture.scale),
        "softcap": capture.softcap is None or _is_finite(capture.softcap),
        "certificate": is_compared and _is_finite(result.tolerance),
        "words of the certificate": isinstance(result.where, str),
        "query or key": _is_table(capture.query) and _is_table(capture.key),
    })  # fmt: skip
    B, H, N, d = capture.query.shape
    G, M = capture.key.shape[1:3]
    value, sinks, sums, weights = capture.value, capture.sinks, capture.sums, capture.weights
    ids, query_ids = capture.ids, capture.query_ids
    _require(owner, {
        "key": capture.key.shape == (B, G, M, d) and G > 0 and H % G == 0,
        "values": value is None or value.shape[:-1] == (B, G, M),
        "sinks": sinks is None or sinks.shape in ((H,), (B, H, N)),
        "log-sum-exps": sums is None or (sums.is_floating_point() and sums.shape == (B, H, N)),
        "ids": ids is None or (ids.ndim == 2 and min(N, M) <= ids.shape[1] <= max(N, M)),
        "ids of queries": query_ids is None or (query_ids.ndim == 2 and query_ids.shape[1] >= N),
        "heads": capture.heads is None or _are_heads(capture.heads, H),
        "tokens": len(capture.tokens) == B,
        "weights": weights is None or weights.shape == (B, H, N, M),
    })  # fmt: skip
    if capture.bias is not None:
        check_broadcast("bias", capture.bias, (B, H, N, M))
    for real in distinct(capture.tokens):
        _check_tokens(real, (H, N, M), owner)


def check_images(images: Images) -> None:
    """Check images, except their pixels; raise a ValueError that names the field."""
    for pixels in images.pixels:
        height, width, channels = pixels.shape
        is_size = _is_size(height) and _is_size(width) and max(height, width) <= MAX_SIDE
        _require("", {"image": is_size and channels == 3 and pixels.dtype == torch.uint8})
    size = images.input_size
    is_pair = size is None or (len(size) == 2 and all(map(_is_size, size)))
    _require(" of the images", {"size": is_pair, "note": isinstance(images.assumed, str)})
    for cut in images.patches:
        words = (cut.module, *cut.before)
        _require(f" of the patches of {cut.module!r}", {
            "names": all(isinstance(word, str) for word in words) and len(words) <= MAX_SIDE,
            "note": cut.assumed in ("", "apart", "assumed"),
            "size": _is_size(cut.height) and _is_size(cut.width),
            "windows": all(is_integer(n) and 0 <= n <= MAX_SIDE for n in (cut.window, cut.shift)),
        })  # fmt: skip


def _require(owner: str, conditions: dict[str, bool]) -> None:
    for field, is_valid in conditions.items():
        if not is_valid:
            raise ValueError(f"cannot use the {field}{owner}")


def _check_tokens(real: RealTokens, shape: tuple[int, int, int], owner: str) -> None:
    H, N, M = shape
    for index, size in ((real.queries, N), (real.keys, M)):
        is_list = index.ndim == 1 and index.dtype == torch.long
        _require(owner, {"real tokens": is_list and bool(((index >= 0) & (index < size)).all())})
    if real.mask is not None:
        real.mask.check((H, len(real.queries), len(real.keys)))
        parts = real.mask.parts if isinstance(real.mask, Combined) else (real.mask,)
        _require(owner, {"mask": len(parts) > 0 and all(map(_are_bits, parts))})


def _has_texts(capture: Capture) -> bool:
    """Return whether a call has as many sequences (texts × parts) as its texts and parts imply."""
    texts, parts, first = capture.texts, capture.parts, capture.first
    if not all(map(is_integer, (texts, parts, first))) or parts < 1:
        return False
    return 0 <= first <= texts - len(capture.query) / parts


def _is_number(number: object) -> TypeGuard[float]:
    return isinstance(number, Real) and not isinstance(number, bool)


def _is_finite(number: object) -> bool:
    return _is_number(number) and math.isfinite(number)


def _is_size(number: object) -> bool:
    return is_integer(number) and 0 < number <= 4 * MAX_SIDE


def _is_table(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.ndim == 4 and tensor.is_floating_point()


def _are_heads(heads: list[int], H: int) -> bool:
    is_list = isinstance(heads, list) and all(is_integer(head) and head >= 0 for head in heads)
    return is_list and len(set(heads)) == len(heads) == H


def _are_bits(mask: Mask) -> bool:
    if not isinstance(mask, Packed):
        return True
    return mask.bits.dtype == torch.uint8 and mask.bits.shape[-1] == -(-mask.keys // 8)
