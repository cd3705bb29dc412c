"""Finds the number of texts, the padding and the token ids among the arguments of a forward pass.

Arguments are recognised by their shapes and by the names that most models use.
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
from heedful.recorder.module_stack import Frame, is_library_model
from heedful.recorder.observed_call import Observed, TokenMasks

# Names of padding masks of the encoder, or of a model without an encoder
ENCODER_MASKS = ("attention_mask", "keep", "source_keep", "encoder_attention_mask", "memory_keep")
# Names of masks that may mark padding; used only if the call's own mask hides this padding
GUESSED = ("mask", "src_mask", "padding_mask", "src_key_padding_mask", "key_padding_mask")
# Names of padding masks of the decoder of an encoder–decoder
DECODER_MASKS = ("decoder_attention_mask", "target_keep", "keep")
MASKS = {*ENCODER_MASKS, *GUESSED, *DECODER_MASKS}
ENCODER_IDS = ("input_ids", "ids", "source", "src", "idx", "tokens")
DECODER_IDS = ("decoder_input_ids", "target", "tgt", "trg")
# Parts of names of integer inputs that are not token ids
NO_IDS = ("mask", "type", "segment", "position", "keep", "label", "target")
CHANNELS = (1, 3, 4)  # of images
CACHES = ("past", "cache")  # parts of names of caches
# Parts of names of inputs that may lack the batch axis; boolean inputs may lack it, too
TABLES = ("mask", "bias", "position_ids")


class Inputs:
    """The shapes of the arguments of a model call, and copies of its masks and ids.

    shapes: the shape of each tensor among the arguments, by its name.
    number, cached: as in `Frame`.
    embedded_ids: the ids that an `nn.Embedding` looked up last, used if no argument has ids.
    """

    def __init__(self, frame: Frame, embedded_ids: Tensor | None = None) -> None:
        arguments = arguments_by_name(frame.module, frame.arguments, frame.keywords)
        tensors = _shorten_names({name: value for name, value in _tensors(arguments)
                                  if not ("[" in name and _is_cache(name))})  # fmt: skip
        self.number, self.cached = frame.number, frame.cached
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._are_floats = {name: tensor.is_floating_point() for name, tensor in tensors.items()}
        self._booleans = {name for name, tensor in tensors.items() if tensor.dtype == torch.bool}
        self._are_ids = {name: are_ids(tensor) for name, tensor in tensors.items()}
        self._tables = {name: tensor.detach().clone() for name, tensor in tensors.items()
                        if self._are_ids[name] or plain(name) in MASKS}  # fmt: skip
        is_library = is_library_model(frame.module)
        parameters = _signature(frame.module.forward).parameters if is_library else ()
        self._may_have_decoder = not is_library or any(name in parameters for name in DECODER_IDS)
        is_unique = is_library or sum(self._are_ids.values()) < 2
        parts = frame.module.named_modules()
        self._are_ids_unique = is_unique or any("encoder" in name for name, _ in parts)
        self._embedded = None
        if embedded_ids is not None and are_ids(embedded_ids):
            self._embedded = embedded_ids.detach().cpu().clone()
        self._has_cache = any(_is_cache(name) and not isinstance(value, bool | Tensor | None)
                              for name, value in arguments.items())  # fmt: skip
        self._lengths = {name: len(value) for name, value in arguments.items()
                         if isinstance(value, list | tuple)}  # fmt: skip
        self._cache: dict[tuple, Tensor] = {}

    @cached_property
    def image(self) -> tuple[int, int] | None:
        """The height and width of an input of images, (batch, channels, h, w); else None."""
        floats = [shape for name, shape in self.shapes.items() if self._are_floats[name]]
        images = (shape for shape in floats if len(shape) == 4 and shape[1] in CHANNELS)
        return next(((shape[2], shape[3]) for shape in images), None)

    @cached_property
    def listed(self) -> int:
        """The length of an input that is a list of texts (ids or vectors) or of images; else 0."""
        listed = {name.split("[")[0] for name, shape in self.shapes.items() if "[0]" in name
                  and (len(shape) == 1 if not self._are_floats[name] else
                       len(shape) == 2 or (len(shape) == 3 and shape[0] in CHANNELS))}  # fmt: skip
        return next((self._lengths[name] for name in listed if name in self._lengths), 0)

    def texts(self, queries: int = 0) -> tuple[int | None, int | None]:
        """Return the number of texts and another possible number, each None if unknown. If the
        first axis of an input has the size `queries`, it may hold positions, and not texts."""
        names = [name for name in self.shapes if name not in self._booleans
                 and not any(part in plain(name) for part in TABLES)]  # fmt: skip
        ids = [name for name in names if self._are_ids[name] and not is_not_ids(name)]
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

    def real(self, call: Observed, in_decoder: bool) -> TokenMasks:
        """Return the real tokens of a call, from its door or else from padding masks in inputs."""
        _, _, N, M = call.shape
        if call.real is not None:
            return call.real
        names = DECODER_MASKS if in_decoder and not call.cross else ENCODER_MASKS
        B, keys = len(call.query), self._padding_mask(names, len(call.query), M)
        is_guess = keys is None and names is ENCODER_MASKS
        if is_guess:
            keys = self._padding_mask(GUESSED, B, M)
        if call.cross:
            return TokenMasks(keys, self._padding_mask(DECODER_MASKS, B, N), is_guess)
        if keys is not None and (N > 1 or is_guess) and _is_attention_mask(keys, call):
            return TokenMasks()
        crosses = self._crosses(N, M)
        if (keys is None or self.cached is not None) and not crosses:
            of_cache = self._real_in_cache(names, B, N, M)
            if of_cache is not None or keys is None:
                return of_cache or TokenMasks()
        if keys is None:
            return TokenMasks()
        if not crosses:
            return TokenMasks(keys, None, is_guess)
        return TokenMasks(keys, self._shared(("all", N), keys.new_ones(len(keys), N)), is_guess)

    def ids(self, in_decoder: bool, is_named: bool = False) -> Tensor | None:
        """Return the token ids of the decoder or the encoder, (texts, L); None if unknown. With
        `is_named`, use only arguments with a usual name for ids."""
        names = DECODER_IDS if in_decoder and self._may_have_decoder else ENCODER_IDS
        tables = [name for name, are in self._are_ids.items() if are]
        matches = [name for name in names if name in tables][:1]
        if matches and self._has_rival(matches[0]):
            return None
        if not matches and not in_decoder and not is_named:
            candidates = [name for name in tables if not is_not_ids(name)]
            has_floats = any(self._are_floats.values())  # the encoder may read them instead of ids
            of_encoder = [name for name in candidates if name not in DECODER_IDS]
            matches = of_encoder if of_encoder or has_floats else candidates
        if len(matches) != 1:
            return None if is_named else self._embedded
        return self._shared(("ids", matches[0]), self._tables[matches[0]].cpu())

    def _has_rival(self, name: str) -> bool:
        """Whether another argument may hold the ids instead, as in a model of two texts."""
        if self._are_ids_unique:
            return False
        ids, names = self._tables[name], (*ENCODER_IDS, *DECODER_IDS)
        rivals = (table for other, table in self._tables.items() if plain(other) in names)
        return any(ids.shape == rival.shape and not ids.equal(rival) for rival in rivals)

    def _shared(self, key: tuple, tensor: Tensor) -> Tensor:
        """Return the tensor stored for a key, or store this one, so that all layers share it."""
        return self._cache.setdefault(key, tensor)

    def _padding_mask(self, names: tuple[str, ...], sequences: int, length: int) -> Tensor | None:
        """Return the first argument of these names that is a mask (texts, length); else None."""
        for name in names:
            mask = self._tables.get(name)
            if mask is None or mask.ndim not in (2, 3) or not mask.numel():
                continue
            rows = len(mask)  # a middle axis must have size 1
            if mask.shape[-1] == length == mask.numel() // rows and sequences % rows == 0:
                return self._as_boolean(name, mask.reshape(rows, length))
        return None

    def _real_in_cache(self, names: tuple[str, ...], B: int, N: int, M: int) -> TokenMasks | None:
        """Return the real tokens from a padding mask of all tokens so far, or None. Its length may
        differ from M: a cache may have empty slots at its end, or hold only the last tokens."""
        for name in names:
            mask = self._tables.get(name)
            if mask is None or mask.ndim != 2 or not len(mask) or B % len(mask):
                continue
            length = mask.shape[1]
            end = length if self.cached is None else self.cached + N
            has_room = N <= length < M or (N < M < length and self._has_cache)
            if length < end or (self.cached is None and not has_room):
                continue
            so_far, dropped = self._as_boolean(name, mask)[:, :end], max(0, end - M)
            may_be_real = self.cached is None  # whether keys after the end may be real
            keys = F.pad(so_far[:, dropped:], (0, M - end + dropped), value=may_be_real)
            queries = self._shared((name, "queries", N), so_far[:, -N:])
            return TokenMasks(self._shared((name, "keys", M), keys), queries)
        return None

    def _crosses(self, N: int, M: int) -> bool:
        """Whether the keys belong to another text, and not to a cache of the queries' own text."""
        shapes = [shape for name, shape in self.shapes.items()
                  if plain(name) not in MASKS and len(shape) > 1]  # fmt: skip
        return N > M or (N < M and any(shape[1] == M for shape in shapes))

    def _as_boolean(self, name: str, mask: Tensor) -> Tensor:
        """Convert a padding mask to boolean: True for real tokens."""
        is_added = mask.is_floating_point() and bool((mask < 0).any())
        return self._shared((name,), mask == 0 if is_added or "padding" in name else mask.bool())


def are_ids(tensor: Tensor) -> bool:
    """Whether a tensor may hold token ids: integers, with two axes."""
    integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.ndim == 2 and integer


def is_not_ids(name: str) -> bool:
    """Whether the name of an integer argument shows that it does not hold token ids."""
    return any(part in plain(name) for part in NO_IDS)


def plain(name: str) -> str:
    """Return the last part of a name without its index: "ids" for "document.ids[1]"."""
    return name.rpartition(".")[2].split("[")[0]


def lengths_of(frame: Frame) -> set[int]:
    """Return the sizes of the axes of a module's buffers and inputs, except the inputs' widths."""
    inputs = _tensors(arguments_by_name(frame.module, frame.arguments, frame.keywords))
    shapes = [tensor.shape for _, tensor in inputs]
    sizes = {size for shape in shapes for size in shape[:-1]}
    sizes |= {shape[-1] for shape in shapes if len(shape) == 2}
    return sizes | {size for table in frame.module.buffers(recurse=False) for size in table.shape}


def _is_attention_mask(keep: Tensor, call: Observed) -> bool:
    """Whether a mask is the (queries, keys) mask of the call, and not a padding mask of N texts."""
    if keep.shape != call.shape[2:] or call.mask is None:
        return False
    mask = call.mask
    mask = mask.crop(call.shape) if isinstance(mask, Mask) else mask
    return bool((mask == keep.to(mask.device)).all())


def _signature(forward: Any) -> inspect.Signature:
    """Return the signature of a method from a cache, since computing it takes long."""
    function = getattr(forward, "__func__", None)
    if function is None:
        return inspect.signature(forward)
    if function not in _signatures:
        _signatures[function] = inspect.signature(forward)
    return _signatures[function]


_signatures: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()


def arguments_by_name(module: nn.Module, arguments: tuple, keywords: dict) -> dict[str, Any]:
    """Return the arguments of a module call by the names of the parameters of its `forward`."""
    if not (arguments or keywords):
        return {}
    module = getattr(module, "_orig_mod", module)  # the original of a compiled module
    try:
        signature = _signature(module.forward)
        if not arguments:  # binding would be slow
            names = (name for name in signature.parameters if name in keywords)
            return {name: keywords[name] for name in names} | keywords
        inputs = dict(signature.bind_partial(*arguments, **keywords).arguments)
    except (TypeError, ValueError):  # no signature, or arguments with which the call will fail
        return dict(keywords)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            inputs |= inputs.pop(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            inputs |= {f"{name}_{i}": value for i, value in enumerate(inputs.pop(name, ()))}
    return inputs


def _shorten_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Shorten each name to its last part if no other name has the same last part."""
    short = {name: name.rpartition(".")[2] for name in tensors}
    counts = Counter(short.values())
    return {name if counts[short[name]] > 1 else short[name]: tensor
            for name, tensor in tensors.items()}  # fmt: skip


def _is_cache(name: str) -> bool:
    return any(part in name for part in CACHES)


def _tensors(
    values: Mapping[str, Any], prefix: str = "", depth: int = 4
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in the inputs with its name; nested ones come last."""
    inner: list[tuple[str, Mapping[str, Any]]] = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            inner.append((f"{prefix}{name}.", {str(key): part for key, part in value.items()}))
        elif isinstance(value, list | tuple):
            inner.append((prefix, {f"{name}[{i}]": part for i, part in enumerate(value)}))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = (field.name for field in dataclasses.fields(value))
            parts = {field: getattr(value, field, None) for field in fields}
            inner.append((f"{prefix}{name}.", parts))
    if depth:
        for inner_prefix, members in inner:
            yield from _tensors(members, inner_prefix, depth - 1)
