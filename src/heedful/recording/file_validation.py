"""Checks that what a file says of a call fits together, so that it fails when it is opened."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from heedful.ops.indexing import check_broadcast
from heedful.ops.masks import Combined, Mask, Packed
from heedful.recording.capture import Capture
from heedful.recording.checks import is_whole
from heedful.recording.images import Images
from heedful.recording.pixels import LONGEST
from heedful.recording.proof import LAYOUTS
from heedful.recording.real_tokens import RealTokens, distinct

CALL_KINDS = ("self", "causal", "cross")


def check(capture: Capture) -> None:
    """Check a call that was read, but for its numbers; a ValueError says what is wrong."""
    of = f" of call {capture.name!r}"
    checked, (word, why) = capture.check, capture.layout
    numbers = (capture.index, capture.pass_index, checked.rows)
    # the difference is NaN only where nothing was compared
    is_compared = _is_number(checked.worst) and not (checked.rows and math.isnan(checked.worst))
    _hold(of, {
        "name": isinstance(capture.name, str) and isinstance(capture.door, str),
        "layer, number or pass": capture.layer is None or is_whole(capture.layer),
        "layer, numbers of calls or rows": all(map(is_whole, numbers)),
        "layout": word in LAYOUTS and isinstance(why, str),
        "numbers of texts": _has_texts(capture),
        "sequences with a fault": all(0 <= row < len(capture.query) for row in capture.against),
        "kind": capture.kind in CALL_KINDS,
        "scale": _is_finite(capture.scale),
        "softcap": capture.softcap is None or _is_finite(capture.softcap),
        "certificate": is_compared and _is_finite(checked.tolerance),
        "words of the certificate": isinstance(checked.where, str),
        "query or key": _is_table(capture.query) and _is_table(capture.key),
    })  # fmt: skip
    B, H, N, d = capture.query.shape
    G, M = capture.key.shape[1:3]
    value, sinks, sums, weights = capture.value, capture.sinks, capture.sums, capture.weights
    ids, query_ids = capture.ids, capture.query_ids
    _hold(of, {
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
        _check_tokens(real, (H, N, M), of)


def check_images(images: Images) -> None:
    """Check what a file says of images, but for their pixels; a ValueError says what is wrong."""
    for pixels in images.pixels:
        height, width, channels = pixels.shape
        is_size = _is_size(height) and _is_size(width) and max(height, width) <= LONGEST
        _hold("", {"image": is_size and channels == 3 and pixels.dtype == torch.uint8})
    seen = images.seen
    is_seen = seen is None or (len(seen) == 2 and all(map(_is_size, seen)))
    _hold(" of the images", {"size": is_seen, "note": isinstance(images.assumed, str)})
    for cut in images.patches:
        words = (cut.module, *cut.before)
        _hold(f" of the patches of {cut.module!r}", {
            "names": all(isinstance(word, str) for word in words) and len(words) <= LONGEST,
            "note": cut.assumed in ("", "apart", "assumed"),
            "size": _is_size(cut.height) and _is_size(cut.width),
            "windows": all(is_whole(n) and 0 <= n <= LONGEST for n in (cut.window, cut.shift)),
        })  # fmt: skip


def _hold(of: str, rules: dict[str, bool]) -> None:
    for what, holds in rules.items():
        if not holds:
            raise ValueError(f"cannot use the {what}{of}")


def _check_tokens(real: RealTokens, shape: tuple[int, int, int], of: str) -> None:
    H, N, M = shape
    for indices, size in ((real.queries, N), (real.keys, M)):
        is_list = indices.ndim == 1 and indices.dtype == torch.long
        _hold(of, {"real tokens": is_list and bool(((indices >= 0) & (indices < size)).all())})
    if real.mask is not None:
        real.mask.check((H, len(real.queries), len(real.keys)))
        parts = real.mask.parts if isinstance(real.mask, Combined) else (real.mask,)
        _hold(of, {"mask": len(parts) > 0 and all(map(_are_bits, parts))})


def _has_texts(capture: Capture) -> bool:
    """Whether a call has whole texts of those that the pass had."""
    texts, parts, first = capture.texts, capture.parts, capture.first
    if not all(map(is_whole, (texts, parts, first))) or parts < 1:
        return False
    return 0 <= first <= texts - len(capture.query) / parts


def _is_number(number: object) -> TypeGuard[float]:
    return isinstance(number, Real) and not isinstance(number, bool)


def _is_finite(number: object) -> bool:
    return _is_number(number) and math.isfinite(number)


def _is_size(number: object) -> bool:
    return is_whole(number) and 0 < number <= 4 * LONGEST


def _is_table(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.ndim == 4 and tensor.is_floating_point()


def _are_heads(heads: list[int], H: int) -> bool:
    is_list = isinstance(heads, list) and all(is_whole(head) and head >= 0 for head in heads)
    return is_list and len(set(heads)) == len(heads) == H


def _are_bits(mask: Mask) -> bool:
    if not isinstance(mask, Packed):
        return True
    return mask.bits.dtype == torch.uint8 and mask.bits.shape[-1] == -(-mask.keys // 8)
