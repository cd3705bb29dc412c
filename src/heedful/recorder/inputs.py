"""What a pass was given: which of its tokens are no padding, their ids, how many texts there are.

Known by the names of arguments, as models of transformers, our own and many others have them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from heedful.ops.masks import Mask
from heedful.recorder.seen import Real, Seen

# Which of the keys there are, or of the side that reads, are real ...
READ = ("attention_mask", "keep", "source_keep", "encoder_attention_mask", "memory_keep")
# ... or may tell so, where the call hides the others from every query
GUESSED = ("mask", "src_mask", "padding_mask", "src_key_padding_mask", "key_padding_mask")
# ... and of the side that writes, in an encoder–decoder
WRITTEN = ("decoder_attention_mask", "target_keep", "keep")
READ_IDS, WRITTEN_IDS = (
    ("input_ids", "ids", "source", "src", "idx", "tokens"),
    ("decoder_input_ids", "target", "tgt", "trg"),
)
NO_IDS = ("mask", "type", "segment", "position", "label", "target", "keep")  # parts of other names


class Inputs:
    """The arguments of a pass by their names.

    Args:
        module: that is called.
        arguments, keywords: what it is called with.
    """

    def __init__(self, module: nn.Module, arguments: tuple = (), keywords: dict | None = None):
        self.given = _named(module, arguments, keywords or {})
        self.tensors = {name: one for name, one in self.given.items() if isinstance(one, Tensor)}
        self._kept: dict[str, Tensor] = {}
        self._padded: dict[tuple[str, int], Tensor] = {}

    def real(self, seen: Seen, writes: bool) -> Real:
        """What of a call was told to be no padding; `writes`: by a decoder beside an encoder."""
        _, _, N, M = seen.shape
        if seen.real is not None:
            return seen.real
        names = WRITTEN if writes and not seen.cross else READ
        keys = self._told(names, M)
        is_guess = keys is None and names is READ
        if is_guess:
            keys = self._told(GUESSED, M)
        if seen.cross:
            return Real(keys, self._told(WRITTEN, N), is_guess)
        if keys is None:
            return self._so_far(names, N, M)
        if _is_table(keys, seen):
            return Real()
        if not self._crosses(N, M):
            return Real(keys, None, is_guess)
        every = keys.new_ones(len(keys), N)  # one for all layers, which share what is made of it
        return Real(keys, self._padded.setdefault(("", N), every), is_guess)

    def ids(self, seen: Seen, writes: bool) -> Tensor | None:
        """(texts, M), the tokens of the keys, where the model was given as many ids.

        A pass with a cache is given those of its queries alone, (texts, N). Where positions come
        first, (M, texts), as torch itself has them, that is known from the texts of the call.
        """
        if seen.cross:
            return None
        names = WRITTEN_IDS if writes else READ_IDS
        found = [self.tensors[name] for name in names if name in self.tensors][:1]
        if not found and not writes:
            given = [name for name in self.tensors if not _is_other(name)]
            read = [name for name in given if name not in WRITTEN_IDS] or given
            found = [self.tensors[name] for name in read]
        found = [one for one in found if _are_ids(one)]
        if len(found) != 1:
            return None
        [ids], lengths = found, seen.shape[-2:]
        if ids.shape[1] not in lengths:
            if len(ids) not in lengths or ids.shape[1] != len(seen.query):
                return None
            ids = ids.mT
        return ids.detach().cpu().clone()

    def texts(self, rows: int, lengths: Collection[int] = ()) -> int:
        """Of how many texts so many tables (N, M) of a call are; each of its own if none is told.

        Args:
            rows: the tables, heads of all texts one after the other.
            lengths: N and M.
        """
        first = next((one for one in self.tensors.values() if one.ndim), None)
        if first is None:
            return rows
        texts = texts_in(first, lengths)
        return texts if texts and rows % texts == 0 else rows

    def _told(self, names: tuple[str, ...], length: int) -> Tensor | None:
        texts = self.texts(0)
        for name in names:
            mask = self.tensors.get(name)
            if mask is None or mask.ndim not in (2, 3) or mask.numel() != texts * length:
                continue
            if (len(mask), mask.shape[-1]) == (texts, length):  # with axes of one between, or not
                return self._keep(name, mask.reshape(texts, length))
        return None

    def _so_far(self, names: tuple[str, ...], N: int, M: int) -> Real:
        """Of a cache that is longer than the tokens so far, or has forgotten the first."""
        first = next((one for one in self.tensors.values() if one.ndim), None)
        for name in names:
            mask = self.tensors.get(name)
            if first is None or mask is None or mask.ndim != 2 or len(mask) != len(first):
                continue
            length = mask.shape[1]
            if N <= length < M:
                kept = self._keep(name, mask)
                keys = torch.nn.functional.pad(kept, (0, M - length), value=True)
                return Real(self._padded.setdefault((name, M), keys), kept[:, length - N :])
            if N < M < length and self._has_cache():
                keys = self._keep(name, mask)[:, length - M :]
                return Real(self._padded.setdefault((name, M), keys))
        return Real()

    def _crosses(self, N: int, M: int) -> bool:
        """Whether keys are a text of their own: queries that follow a cache are fewer, and the pass
        is given them alone."""
        masks = (*READ, *WRITTEN, *GUESSED)
        given = [one for name, one in self.tensors.items() if name not in masks and one.ndim > 1]
        return N > M or (N < M and any(one.shape[1] == M for one in given))

    def _has_cache(self) -> bool:
        return any(
            ("past" in name or "cache" in name) and not isinstance(one, bool | Tensor | None)
            for name, one in self.given.items()
        )

    def _keep(self, name: str, mask: Tensor) -> Tensor:
        """True for real tokens; one tensor for all layers."""
        if name not in self._kept:
            is_added = mask.is_floating_point() and bool((mask < 0).any())
            self._kept[name] = mask == 0 if is_added or "padding" in name else mask.bool()
        return self._kept[name]


def texts_in(given: Tensor, lengths: Collection[int]) -> int:
    """Of how many texts a tensor is, which stand before, or after as many positions."""
    if given.ndim == 1 or (given.ndim == 2 and not _are_ids(given) and len(given) in lengths):
        return 1  # one text, of ids or of vectors
    if given.ndim in (2, 3) and len(given) in lengths and given.shape[1] not in lengths:
        return given.shape[1]  # positions come first
    return len(given)


def _is_table(keep: Tensor, seen: Seen) -> bool:
    """Whether it is of queries and keys, and there are as many texts: the call's own mask."""
    if keep.shape != seen.shape[2:] or seen.mask is None:
        return False
    mask = seen.mask.crop(seen.shape) if isinstance(seen.mask, Mask) else seen.mask
    return bool((mask == keep.to(mask.device)).all())


def _is_other(name: str) -> bool:
    return any(part in name for part in NO_IDS)


def _are_ids(tensor: Tensor) -> bool:
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.ndim == 2 and whole


def _named(module: nn.Module, arguments: tuple, keywords: dict) -> dict[str, Any]:
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps has the names
    signature = inspect.signature(module.forward)
    try:
        named = dict(signature.bind_partial(*arguments, **keywords).arguments)
    except TypeError:  # which the call itself will raise
        return dict(keywords)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            named |= {f"{name}[{i}]": one for i, one in enumerate(named.pop(name, ()))}
    return named
