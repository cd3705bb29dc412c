"""Checks that what a file says of a call fits together, so that it fails now and not when asked."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from heedful.ops.masks import Combined, Mask, Packed
from heedful.ops.score_tables import check_broadcast
from heedful.recording.capture import Capture
from heedful.recording.checks import is_whole
from heedful.recording.pictures import Images
from heedful.recording.pixels import LONGEST
from heedful.recording.proof import LAYOUTS
from heedful.recording.real_tokens import RealTokens, distinct

CALL_KINDS = ("self", "causal", "cross")


def check(capture: Capture) -> None:
    """Check a call that was read; of its tensors only the indices of real tokens are read.

    Raises:
        ValueError: with what does not fit.
    """
    of = f"of call {capture.name!r}"
    query, key, value = capture.query, capture.key, capture.value
    _hold(isinstance(capture.name, str) and isinstance(capture.door, str), f"the name {of}")
    numbered = (capture.layer is None or is_whole(capture.layer), is_whole(capture.index))
    _hold(all(numbered) and is_whole(capture.pass_index), f"the layer, number or pass {of}")
    word, why = capture.layout
    _hold(word in LAYOUTS and isinstance(why, str), f"the layout {of}")
    _hold(_has_texts(capture), f"the numbers of texts {of}")
    inside = all(0 <= row < len(capture.query) for row in capture.against)
    _hold(inside, f"what was found against {of}")
    _hold(isinstance(capture.check.where, str), f"the certificate {of}")
    _hold(capture.kind in CALL_KINDS, f"the kind {capture.kind!r} {of}")
    _hold(_is_finite(capture.scale), f"the scale {of}")
    _hold(capture.softcap is None or _is_finite(capture.softcap), f"the softcap {of}")
    worst, rows = capture.check.worst, capture.check.rows
    _hold(_is_finite(capture.check.tolerance) and is_whole(rows), f"the certificate {of}")
    # only of a call that was not compared the difference is no number
    _hold(_is_number(worst) and not (rows and math.isnan(worst)), f"the certificate {of}")
    _hold(_is_table(query) and _is_table(key), f"the query or key {of}")
    B, H, N, d = query.shape
    G, M = key.shape[1:3]
    _hold(key.shape == (B, G, M, d) and G > 0 and H % G == 0, f"the key {of}")
    _hold(value is None or value.shape[:-1] == key.shape[:-1], f"the values {of}")
    sinks, sums, ids = capture.sinks, capture.sums, capture.ids
    _hold(sinks is None or sinks.shape in ((H,), (B, H, N)), f"the sinks {of}")
    is_real = sums is None or sums.is_floating_point()
    _hold(is_real and (sums is None or sums.shape == (B, H, N)), f"the log-sum-exps {of}")
    fits = ids is None or (ids.ndim == 2 and min(N, M) <= ids.shape[1] <= max(N, M))
    asked = capture.query_ids
    _hold(fits and (asked is None or (asked.ndim == 2 and asked.shape[1] >= N)), f"the ids {of}")
    if capture.bias is not None:
        check_broadcast("bias", capture.bias, (B, H, N, M))
    _hold(_are_heads(capture.heads, H), f"the heads {capture.heads} {of}")
    _hold(len(capture.tokens) == B, f"the tokens {of}, of {B} sequences")
    for real in distinct(capture.tokens):
        _check_tokens(real, (H, N, M), of)
    weights = capture.weights
    _hold(weights is None or weights.shape == (B, H, N, M), f"the weights {of}")


def check_images(images: Images) -> None:
    """Check what is said of images; of their pixels only the shape is looked at.

    Raises:
        ValueError: with what does not fit.
    """
    for pixels in images.pixels:
        shape = tuple(pixels.shape)
        fits = len(shape) == 3 and shape[-1] == 3 and 0 < min(shape) <= max(shape) <= LONGEST
        _hold(fits and pixels.dtype == torch.uint8, f"an image of the shape {shape}")
    _hold(isinstance(images.assumed, str), "what is assumed of the images")
    seen = images.seen
    _hold(seen is None or (len(seen) == 2 and all(map(_is_size, seen))), "the size of the images")
    for one in images.patches:
        words = (one.module, *one.before)
        sizes = _is_size(one.height) and _is_size(one.width) and len(one.before) <= LONGEST
        windows = all(is_whole(n) and 0 <= n <= LONGEST for n in (one.window, one.shift))
        _hold(all(isinstance(word, str) for word in words), "the names of patches")
        _hold(one.assumed in ("", "apart", "assumed"), "what is assumed of patches")
        _hold(sizes and windows, f"the patches of {one.module!r}")


def _is_size(number: object) -> bool:
    return is_whole(number) and 0 < number <= 4 * LONGEST


def _check_tokens(real: RealTokens, shape: tuple[int, int, int], of: str) -> None:
    H, N, M = shape
    queries, keys, mask = real
    for indices, size in ((queries, N), (keys, M)):
        _hold(indices.ndim == 1 and indices.dtype == torch.long, f"the real tokens {of}")
        inside = not len(indices) or (int(indices.min()) >= 0 and int(indices.max()) < size)
        _hold(inside, f"the real tokens {of}, of {size}")
    if mask is not None:
        mask.check((H, len(queries), len(keys)))
        _hold(all(map(_are_bits, _parts(mask))), f"the mask {of}")


def _hold(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"cannot use {what}")


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


def _is_table(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.ndim == 4 and tensor.is_floating_point()


def _are_heads(heads: object, H: int) -> bool:
    if heads is None:
        return True
    return (
        isinstance(heads, list)
        and all(is_whole(head) and head >= 0 for head in heads)
        and len(set(heads)) == len(heads) == H
    )


def _parts(mask: Mask) -> tuple[Mask, ...]:
    if not isinstance(mask, Combined):
        return (mask,)
    _hold(len(mask.parts) > 0, "a mask of no parts")
    return tuple(one for part in mask.parts for one in _parts(part))


def _are_bits(mask: Mask) -> bool:
    if not isinstance(mask, Packed):
        return True
    return mask.bits.dtype == torch.uint8 and mask.bits.shape[-1] == -(-mask.keys // 8)
