"""Reads the inputs of a pass: how many texts there are, which tokens are padding, and their ids.

What a tensor is follows from the name of its argument, as most models have it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.ops.masks import Mask
from heedful.recorder.module_stack import Frame, is_known
from heedful.recorder.observed_call import Observed, Real

# Masks of the tokens that are no padding; in an encoder–decoder, of the encoder's
READ = ("attention_mask", "keep", "source_keep", "encoder_attention_mask", "memory_keep")
# Masks that may say so: they are believed only where the call hides all other keys
GUESSED = ("mask", "src_mask", "padding_mask", "src_key_padding_mask", "key_padding_mask")
# Masks of the decoder's tokens, in an encoder–decoder
WRITTEN = ("decoder_attention_mask", "target_keep", "keep")
MASKS = {*READ, *GUESSED, *WRITTEN}
READ_IDS = ("input_ids", "ids", "source", "src", "idx", "tokens")
WRITTEN_IDS = ("decoder_input_ids", "target", "tgt", "trg")
# Parts of names of whole numbers that are no ids of what is read
NO_IDS = ("mask", "type", "segment", "position", "keep", "label", "target")
CHANNELS = (1, 3, 4)  # of images
CACHES = ("past", "cache")  # parts of names of caches
# Parts of names of tensors that do not tell how many texts there are, nor do booleans
TABLES = ("mask", "bias", "position_ids")


class Inputs:
    """Shapes of the arguments of a call of a model, and copies of its masks and ids.

    shapes: of all tensors among the arguments, by their names.
    number: of the call, among those of its kind.
    cached: number of tokens in the cache among the arguments; None if unknown.

    Args:
        frame: the call.
        embedded: ids that an embedding looked up, where the call has none itself.
    """

    def __init__(self, frame: Frame, embedded: Tensor | None = None) -> None:
        given = named(frame.module, frame.arguments, frame.keywords)
        tensors = _without_holders({name: value for name, value in _tensors(given)
                                    if not ("[" in name and _is_cache(name))})  # fmt: skip
        self.number, self.cached = frame.number, frame.cached
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._are_floats = {name: one.is_floating_point() for name, one in tensors.items()}
        self._are_booleans = {name for name, one in tensors.items() if one.dtype == torch.bool}
        self._are_ids = {name: are_ids(tensor) for name, tensor in tensors.items()}
        self._tables = {name: tensor.detach().clone() for name, tensor in tensors.items()
                        if self._are_ids[name] or plain(name) in MASKS}  # fmt: skip
        is_a_known = is_known(frame.module)
        parameters = _signature(frame.module.forward).parameters if is_a_known else ()
        self._has_two_texts = not is_a_known or any(name in parameters for name in WRITTEN_IDS)
        are_alone = is_a_known or sum(self._are_ids.values()) < 2
        parts = frame.module.named_modules()
        self._has_sides = are_alone or any("encoder" in name for name, _ in parts)
        self._embedded = None
        if embedded is not None and are_ids(embedded):
            self._embedded = embedded.detach().cpu().clone()
        self._has_cache = any(_is_cache(name) and not isinstance(value, bool | Tensor | None)
                              for name, value in given.items())  # fmt: skip
        self._lengths = {name: len(value) for name, value in given.items()
                         if isinstance(value, list | tuple)}  # fmt: skip
        self._kept: dict[tuple, Tensor] = {}

    @cached_property
    def image(self) -> tuple[int, int] | None:
        """Height and width of the images among the inputs, (texts, channels, h, w)."""
        floats = [shape for name, shape in self.shapes.items() if self._are_floats[name]]
        images = (shape for shape in floats if len(shape) == 4 and shape[1] in CHANNELS)
        return next(((shape[2], shape[3]) for shape in images), None)

    @cached_property
    def listed(self) -> int:
        """How many texts, as ids or vectors, or images stand in a list; 0 without such a list."""
        listed = {name.split("[")[0] for name, shape in self.shapes.items() if "[0]" in name
                  and (len(shape) == 1 if not self._are_floats[name] else
                       len(shape) == 2 or (len(shape) == 3 and shape[0] in CHANNELS))}  # fmt: skip
        return next((self._lengths[name] for name in listed if name in self._lengths), 0)

    def texts(self, queries: int = 0) -> tuple[int | None, int | None]:
        """The number of texts, and another number that is possible; None if unknown. An input with
        positions first has the number of `queries` of a text first."""
        names = [name for name in self.shapes if name not in self._are_booleans
                 and not any(part in plain(name) for part in TABLES)]  # fmt: skip
        ids = [name for name in names if self._are_ids[name] and not is_other(name)]
        if self.listed and not ids:
            return self.listed, None
        several = [self.shapes[name] for name in ids or names if len(self.shapes[name]) > 1]
        if not several:
            vectors = [shape for shape in self.shapes.values() if shape]
            return (1 if vectors else None), None
        count = next((shape[0] for shape in several if shape[0] > 1), 1)
        first = several[0]
        if ids:
            return count, first[1] if first[0] == queries != first[1] else None
        if len(first) == 3 and first[0] == queries != first[1] and queries > 1:
            return first[1], first[0]  # positions first
        if len(first) == 2 and first[0] == queries:
            return 1, count if count > 1 else None  # one text without a batch axis
        others = {shape[0] for shape in several} - {1, count}
        other = next(iter(others), first[1] if len(first) == 3 else None)
        return count, None if other in (1, count) else other

    def real(self, seen: Observed, writes: bool) -> Real:
        """Which tokens of a call are no padding, by the masks among the inputs; of a call of a
        decoder, if it `writes`, in a model that has an encoder too."""
        _, _, N, M = seen.shape
        if seen.real is not None:
            return seen.real
        names = WRITTEN if writes and not seen.cross else READ
        B, keys = len(seen.query), self._told(names, len(seen.query), M)
        is_guess = keys is None and names is READ
        if is_guess:
            keys = self._told(GUESSED, B, M)
        if seen.cross:
            return Real(keys, self._told(WRITTEN, B, N), is_guess)
        if keys is not None and (N > 1 or is_guess) and _is_table(keys, seen):
            return Real()
        crosses = self._crosses(N, M)
        if (keys is None or self.cached is not None) and not crosses:
            of_cache = self._of_cache(names, B, N, M)
            if of_cache is not None or keys is None:
                return of_cache or Real()
        if keys is None:
            return Real()
        if not crosses:
            return Real(keys, None, is_guess)
        return Real(keys, self._once(("all", N), keys.new_ones(len(keys), N)), is_guess)

    def ids(self, writes: bool, named: bool = False) -> Tensor | None:
        """The ids that the encoder was given, or a decoder that `writes`, (texts, L); None without
        any. `named`: only an argument whose name is one for ids."""
        names = WRITTEN_IDS if writes and self._has_two_texts else READ_IDS
        tables = [name for name, are in self._are_ids.items() if are]
        found = [name for name in names if name in tables][:1]
        if found and self._has_rival(found[0]):
            return None
        if not found and not writes and not named:
            given = [name for name in tables if not is_other(name)]
            has_others = any(self._are_floats.values())  # then what is read may be no ids
            read = [name for name in given if name not in WRITTEN_IDS]
            found = read if read or has_others else given
        if len(found) != 1:
            return None if named else self._embedded
        return self._once(("ids", found[0]), self._tables[found[0]].cpu())

    def _has_rival(self, name: str) -> bool:
        """Whether a call may as well be of other ids, in a model without encoder and decoder."""
        if self._has_sides:
            return False
        ids, names = self._tables[name], (*READ_IDS, *WRITTEN_IDS)
        rivals = (table for other, table in self._tables.items() if plain(other) in names)
        return any(ids.shape == rival.shape and not ids.equal(rival) for rival in rivals)

    def _once(self, key: tuple, made: Tensor) -> Tensor:
        """A tensor that is made once, so that all layers share it."""
        return self._kept.setdefault(key, made)

    def _told(self, names: tuple[str, ...], sequences: int, length: int) -> Tensor | None:
        """The first argument of these names that is a mask (texts, length), or None."""
        for name in names:
            mask = self._tables.get(name)
            if mask is None or mask.ndim not in (2, 3) or not mask.numel():
                continue
            rows = len(mask)  # with axes of size 1 between, or not
            if mask.shape[-1] == length == mask.numel() // rows and sequences % rows == 0:
                return self._keep(name, mask.reshape(rows, length))
        return None

    def _of_cache(self, names: tuple[str, ...], B: int, N: int, M: int) -> Real | None:
        """The real tokens by a mask of all tokens so far, which has another length than the keys:
        a cache may have room for more, or a window with the last tokens alone."""
        for name in names:
            mask = self._tables.get(name)
            if mask is None or mask.ndim != 2 or not len(mask) or B % len(mask):
                continue
            length = mask.shape[1]
            end = length if self.cached is None else self.cached + N
            has_room = N <= length < M or (N < M < length and self._has_cache)
            if length < end or (self.cached is None and not has_room):
                continue
            so_far, gone = self._keep(name, mask)[:, :end], max(0, end - M)
            is_known = self.cached is not None  # else what is behind may be real too
            keys = F.pad(so_far[:, gone:], (0, M - end + gone), value=not is_known)
            queries = self._once((name, "queries", N), so_far[:, -N:])
            return Real(self._once((name, "keys", M), keys), queries)
        return None

    def _crosses(self, N: int, M: int) -> bool:
        """Whether the keys are of another text, and not of the same one with a cache."""
        given = [shape for name, shape in self.shapes.items()
                 if plain(name) not in MASKS and len(shape) > 1]  # fmt: skip
        return N > M or (N < M and any(shape[1] == M for shape in given))

    def _keep(self, name: str, mask: Tensor) -> Tensor:
        """A mask as True for real tokens."""
        is_added = mask.is_floating_point() and bool((mask < 0).any())
        return self._once((name,), mask == 0 if is_added or "padding" in name else mask.bool())


def are_ids(tensor: Tensor) -> bool:
    """Whether a tensor may be ids of tokens: a table of whole numbers."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.ndim == 2 and whole


def is_other(name: str) -> bool:
    """Whether whole numbers of this name are no ids of tokens."""
    return any(part in plain(name) for part in NO_IDS)


def plain(name: str) -> str:
    """A name without that of its holder and its number, such as "ids" of "document.ids[1]"."""
    return name.rpartition(".")[2].split("[")[0]


def lengths_of(frame: Frame) -> set[int]:
    """The sizes of axes of a module's inputs, but for the last, and of its buffers."""
    tensors = [one for _, one in _tensors(named(frame.module, frame.arguments, frame.keywords))]
    sizes = {size for one in tensors for size in one.shape[:-1]}
    sizes |= {one.shape[-1] for one in tensors if one.ndim == 2}
    return sizes | {size for one in frame.module.buffers(recurse=False) for size in one.shape}


def _is_table(keep: Tensor, seen: Observed) -> bool:
    """Whether a mask is queries × keys and not texts × keys, where there are as many of both."""
    if keep.shape != seen.shape[2:] or seen.mask is None:
        return False
    mask = seen.mask.crop(seen.shape) if isinstance(seen.mask, Mask) else seen.mask
    return bool((mask == keep.to(mask.device)).all())


def _signature(forward: Any) -> inspect.Signature:
    """The signature of a method; reading it anew in each pass takes too long."""
    function = getattr(forward, "__func__", None)
    if function is None:
        return inspect.signature(forward)
    if function not in _signatures:
        _signatures[function] = inspect.signature(forward)
    return _signatures[function]


_signatures: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()


def named(module: nn.Module, arguments: tuple, keywords: dict) -> dict[str, Any]:
    """The arguments of a call of a module by the names that its `forward` has for them."""
    if not (arguments or keywords):
        return {}
    module = getattr(module, "_orig_mod", module)  # under torch.compile: the module inside
    try:
        signature = _signature(module.forward)
        if not arguments:  # to bind them takes long
            names = (name for name in signature.parameters if name in keywords)
            return {name: keywords[name] for name in names} | keywords
        named = dict(signature.bind_partial(*arguments, **keywords).arguments)
    except (TypeError, ValueError):  # wrong arguments, which the call will raise, or no signature
        return dict(keywords)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            named |= {f"{name}_{i}": one for i, one in enumerate(named.pop(name, ()))}
    return named


def _without_holders(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor without the name of its holder, where it is the only one of its name."""
    short = {name: name.rpartition(".")[2] for name in tensors}
    counts = Counter(short.values())
    return {name if counts[short[name]] > 1 else short[name]: tensor
            for name, tensor in tensors.items()}  # fmt: skip


def _is_cache(name: str) -> bool:
    return any(part in name for part in CACHES)


def _tensors(
    given: Mapping[str, Any], home: str = "", depth: int = 4
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in the inputs with its name, those inside other values last."""
    inner: list[tuple[str, Mapping[str, Any]]] = []
    for name, one in given.items():
        if isinstance(one, Tensor):
            yield f"{home}{name}", one
        elif isinstance(one, Mapping):
            inner.append((f"{home}{name}.", {str(key): value for key, value in one.items()}))
        elif isinstance(one, list | tuple):
            inner.append((home, {f"{name}[{i}]": value for i, value in enumerate(one)}))
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            names = (field.name for field in dataclasses.fields(one))
            inner.append((f"{home}{name}.", {name: getattr(one, name, None) for name in names}))
    if depth:
        for where, values in inner:
            yield from _tensors(values, where, depth - 1)
