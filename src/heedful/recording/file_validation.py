"""Checks that what a file says of a call fits together, so that it fails now and not when asked."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from heedful.ops.masks import Combined, Mask, Packed
from heedful.ops.score_tables import check_broadcast
from heedful.recording.checks import is_whole
from heedful.recording.capture import Capture
from heedful.recording.pictures import Images
from heedful.recording.pixels import LONGEST
from heedful.recorder.owners.padding import Layout

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
    inferred = capture.inferred
    told = isinstance(inferred, dict) and all(isinstance(how, str) for how in inferred.values())
    _hold(_stands(capture), f"the numbers of the sequences {of}")
    inside = all(is_whole(at) and at in capture.sequences for at in capture.against)
    counted = all(one is None or is_whole(one) for one in (capture.texts, capture.texts_dim))
    _hold(told and inside and counted, f"what proves {of}")
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
    _hold(len(capture.layouts) == B, f"the {len(capture.layouts)} layouts {of}, a batch of {B}")
    for layout in capture.layouts:
        _check_layout(layout, (H, N, M), of)


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


def _check_layout(layout: Layout, shape: tuple[int, int, int], of: str) -> None:
    H, N, M = shape
    queries, keys, mask = layout
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


def _stands(capture: Capture) -> bool:
    """Whether a call has sequences of those that all texts have."""
    first, batch = capture.first, capture.batch
    return is_whole(first) and is_whole(batch) and 0 <= first <= batch - len(capture.query)


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
