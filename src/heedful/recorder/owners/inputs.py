"""Reads the inputs of a pass: which tokens are padding, their ids, and how many texts there are.

Tensors are found wherever they stand in the inputs. What they are is known by the names of
arguments, as models of transformers, our own and many others have them.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from heedful.ops.masks import Mask
from heedful.recorder.observed import Batch, Observed, Real, Tokens
from heedful.recorder.owners.mask_structure import place_of
from heedful.recorder.owners.text_rows import (
    Place,
    Places,
    TextRows,
    are_ids,
    is_aside,
    is_other,
    plain,
)

# Arguments that tell which keys are no padding; in an encoder–decoder, those of the encoder
READ = ("attention_mask", "keep", "source_keep", "encoder_attention_mask", "memory_keep")
# Arguments that may tell it: they are believed only where the call hides all other keys
GUESSED = ("mask", "src_mask", "padding_mask", "src_key_padding_mask", "key_padding_mask")
# Arguments that tell it of the decoder, in an encoder–decoder
WRITTEN = ("decoder_attention_mask", "target_keep", "keep")
READ_IDS, WRITTEN_IDS = (
    ("input_ids", "ids", "source", "src", "idx", "tokens"),
    ("decoder_input_ids", "target", "tgt", "trg"),
)


class Inputs:
    """The arguments of a pass by their names.

    Args:
        module: the module that is called.
        arguments, keywords: what it is called with.
        cached: how many tokens a cache among them held before; None where none tells.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: tuple = (),
        keywords: dict | None = None,
        cached: int | None = None,
    ):
        self.given = _named(module, arguments, keywords or {})
        self.tensors, self._homes = _by_name(_tensors(self.given))
        self.all = list(self.tensors.values())
        self._rows = TextRows(list(self.tensors), self.all)
        masks = (*READ, *GUESSED, *WRITTEN)
        self.tells_padding = any(part in plain(name) for name in self.tensors for part in masks)
        self._ids: dict[tuple[bool, bool], Tensor | None] = {}
        self._tables: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._padded: dict[tuple[str, int], Tensor] = {}
        self._batches: dict[tuple[Places, ...], Batch] = {}  # layers ask alike
        self._cached = cached

    @property
    def texts(self) -> int | None:
        """How many texts there are, as far as the sizes of the inputs tell."""
        return self.batch().texts

    @property
    def image(self) -> tuple[int, int] | None:
        """Height and width of the images among the inputs, (texts, channels, h, w); or None."""
        tables = (one for one in self.all if one.ndim == 4 and one.is_floating_point())
        found = next((one.shape for one in tables if one.shape[1] in (1, 3, 4)), None)
        return None if found is None else (found[2], found[3])

    def batch(self, *of_call: Iterable[Place]) -> Batch:
        """How many texts there are, and along which axis of the inputs.

        Args:
            of_call: where in the inputs the queries of a call come from, its keys, and what both
                have, such as texts and windows.
        """
        asked = tuple(map(tuple, of_call))
        if asked not in self._batches:
            self._batches[asked] = self._rows.batch(*asked)
        return self._batches[asked]

    @property
    def tell(self) -> bool:
        """Whether they say which tokens there are, or which of them are padding."""
        return self.tells_padding or self._found_ids(False, False) is not None

    def real(self, seen: Observed, writes: bool, of: Tokens | None = None) -> Real:
        """Which tokens of a call the inputs tell to be no padding.

        Args:
            seen: the call.
            writes: whether a decoder made it, in a model that has an encoder too.
            of: all tokens of one of these inputs, where the keys were followed to them.
        """
        _, _, N, M = seen.shape
        if seen.real is not None:
            return seen.real
        if not self.tells_padding:
            return Real()
        names = WRITTEN if writes and not seen.cross else READ
        keys = self._told(names, M, of)
        is_guess = keys is None and names is READ
        if is_guess:
            keys = self._told(GUESSED, M, of)
        if seen.cross:
            return Real(keys, self._told(WRITTEN, N), is_guess)
        # a table of one query says what is padding of one text, if it has the name for that
        if keys is not None and (N > 1 or is_guess) and _is_table(keys, seen):
            return Real()
        crosses = self._crosses(N, M)
        if not crosses and (told := self._by_cache(names, N, M)) is not None:
            return told
        if keys is None:  # what was followed to all tokens of an input is no cache
            return self._so_far(names, N, M) if of is None else Real()
        if not crosses:
            return Real(keys, None, is_guess)
        every = keys.new_ones(len(keys), N)  # one tensor for all layers, so that they share layouts
        return Real(keys, self._padded.setdefault(("", N), every), is_guess)

    def fills(self, seen: Observed) -> bool:
        """Whether a cache of transformers tells that all keys of a call are of tokens.

        A key that no query sees is no room then: each query may see the likeliest few alone.
        """
        return self._cached is not None and self._cached + seen.shape[2] >= seen.shape[3]

    def ids(self, writes: bool, named: bool = False) -> Tensor | None:
        """The ids of the tokens that one side was given, (texts, L); None where none were.

        Args:
            writes: of the decoder of a model that has an encoder too; else of what reads.
            named: only what has the name of an argument for ids.
        """
        if (writes, named) not in self._ids:
            found = self._found_ids(writes, named)
            self._ids[writes, named] = None if found is None else found.detach().cpu().clone()
        return self._ids[writes, named]

    def ids_of(self, tokens: Tokens | None) -> Tensor | None:
        """The ids of all tokens of an input, (sequences, L), or (texts, L) of one sequence.

        None where that input has none: times and kinds are whole numbers too. Ids have a usual name
        for it, or are the only such table.
        """
        if tokens is None or not are_ids(self.all[tokens.number]):
            return None
        table, rows = self.all[tokens.number], tokens.rows
        name, found = plain(list(self.tensors)[tokens.number]), self._found_ids(False, False)
        is_named = name in (*READ_IDS, *WRITTEN_IDS) or "input_ids" in name
        if not is_named and (found is None or place_of(found) != place_of(table)):
            return None
        if len(rows) > 1 and len(set(rows)) < len(table):
            return None  # of which row they are is not known
        if (tokens.number, rows) not in self._tables:
            is_whole = len(rows) == 1 or rows == tuple(range(len(table)))
            own = table if is_whole else table[list(rows)]
            self._tables[tokens.number, rows] = own.detach().cpu().clone()
        return self._tables[tokens.number, rows]

    @property
    def only_ids(self) -> Tensor | None:
        """The ids of tokens, where one input alone may be such; else None."""
        tables = [name for name, one in self.tensors.items() if are_ids(one)]
        several = [name for name in tables if name in WRITTEN_IDS or not is_other(name)]
        return self.ids(several[0] in WRITTEN_IDS) if len(several) == 1 else None

    @property
    def with_aside(self) -> list[tuple[Tensor, bool]]:
        """All tensors, and of each whether it only stands beside others, as masks and places do."""
        return [(one, one.ndim <= 2 and is_aside(name)) for name, one in self.tensors.items()]

    def has(self, other: Inputs, writes: bool) -> bool:
        """Whether one of these is the table of ids that a model inside was given."""
        read = other._found_ids(writes, False)
        return read is not None and place_of(read) in map(place_of, self.all)

    def has_ids_across(self, batch: Batch | None) -> bool:
        """Whether texts were followed to the second axis of a table of ids.

        A row of that table is then no sequence of the call: positions come first, or the texts at
        one place attend to each other.
        """
        place = None if batch is None else batch.place
        return place is not None and place[1] == 1 and are_ids(self.all[place[0]])

    def _found_ids(self, writes: bool, named: bool) -> Tensor | None:
        names = WRITTEN_IDS if writes else READ_IDS
        found = [self.tensors[name] for name in names if name in self.tensors][:1]
        if not found and not writes and not named:
            given = [name for name in self.tensors if not is_other(name)]
            read = [name for name in given if name not in WRITTEN_IDS] or given
            found = [self.tensors[name] for name in read]
        found = [one for one in found if are_ids(one)]
        return found[0] if len(found) == 1 else None

    def _told(self, names: tuple[str, ...], length: int, of: Tokens | None = None) -> Tensor | None:
        """The first argument of these names that is a mask (texts, length), or None.

        of: the tokens that it has to be of, if that is known.
        """
        given = [name for name in names if name in self.tensors]
        if of is not None:
            given = self._beside(of, names)
        texts = self.batch().texts or 0 if given else 0
        for name in given:
            mask = self.tensors[name]
            if mask.ndim not in (2, 3) or mask.numel() != texts * length:
                continue
            if (len(mask), mask.shape[-1]) == (texts, length):  # with axes of one between, or not
                return self._keep(name, mask.reshape(texts, length))
        return None

    def _beside(self, tokens: Tokens, names: tuple[str, ...]) -> list[str]:
        """The masks of these names that stand beside an input: not those beside other ids."""
        ids = list(self.tensors)[tokens.number]
        home, (lead, tail) = self._homes[ids], _beside_ids(ids)
        wanted = [f"{lead}{name}{tail}" for name in names]
        masks = [one for name in wanted for one in self.tensors if plain(one) == name]
        others = {self._homes[name] for name, one in self.tensors.items() if are_ids(one)} - {home}
        own = [name for name in masks if self._homes[name] == home]
        return own or [name for name in masks if self._homes[name] not in others]

    def _by_cache(self, names: tuple[str, ...], N: int, M: int) -> Real | None:
        """What is real where a cache of transformers tells how many tokens it held before.

        It may have room for more, and a window of it has only the last tokens.
        """
        if self._cached is None:
            return None
        end, texts = self._cached + N, self.batch().texts
        gone = max(0, end - M)
        for name in names:
            mask = self.tensors.get(name)
            if mask is None or mask.ndim != 2 or len(mask) != texts or mask.shape[1] < end:
                continue
            told = self._keep(name, mask)[:, :end]
            keys = torch.nn.functional.pad(told[:, gone:], (0, M - end + gone), value=False)
            # one tensor for all layers, so that they share layouts
            kept = self._padded.setdefault((name, M), keys)
            return Real(kept, self._padded.setdefault((f"queries of {name}", N), told[:, -N:]))
        return None

    def _so_far(self, names: tuple[str, ...], N: int, M: int) -> Real:
        """What is real where the cache is longer than the tokens so far, or forgot the first."""
        first = next((one for one in self.all if one.ndim), None)
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
        """Whether the keys are another text than the queries.

        Queries that follow a cache are fewer than the keys too, but then the inputs hold only them.
        """
        masks = (*READ, *WRITTEN, *GUESSED)
        given = [
            one for name, one in self.tensors.items() if plain(name) not in masks and one.ndim > 1
        ]
        return N > M or (N < M and any(one.shape[1] == M for one in given))

    def _has_cache(self) -> bool:
        return any(
            ("past" in name or "cache" in name) and not isinstance(one, bool | Tensor | None)
            for name, one in self.given.items()
        )

    def _keep(self, name: str, mask: Tensor) -> Tensor:
        """A mask as True for real tokens, made once so that all layers share one tensor."""
        if name not in self._kept:
            is_added = mask.is_floating_point() and bool((mask < 0).any())
            self._kept[name] = mask == 0 if is_added or "padding" in name else mask.bool()
        return self._kept[name]


def _beside_ids(name: str) -> tuple[str, str]:
    """What stands before and after the usual name in that of a table of ids.

    >>> _beside_ids("input_ids_b"), _beside_ids("query_input_ids"), _beside_ids("times")
    (('', '_b'), ('query_', ''), ('', ''))
    """
    for usual in ("input_ids", "ids"):
        lead, found, tail = plain(name).partition(usual)
        if found:
            return lead, tail
    return "", ""


def _is_table(keep: Tensor, seen: Observed) -> bool:
    """Whether a mask that looks like (texts, M) is the call's own mask of queries × keys.

    That can be where there are as many texts as queries.
    """
    if keep.shape != seen.shape[2:] or seen.mask is None:
        return False
    mask = seen.mask.crop(seen.shape) if isinstance(seen.mask, Mask) else seen.mask
    return bool((mask == keep.to(mask.device)).all())


def _signature(forward: Any) -> inspect.Signature:
    """The signature of a method, which is asked for in each pass."""
    function = getattr(forward, "__func__", None)
    if function is None:
        return inspect.signature(forward)
    if function not in _signatures:
        _signatures[function] = inspect.signature(forward)
    return _signatures[function]


_signatures: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()


def _named(module: nn.Module, arguments: tuple, keywords: dict) -> dict[str, Any]:
    """The arguments of a call of a module by the names that its `forward` has for them."""
    if not (arguments or keywords):
        return {}
    module = getattr(module, "_orig_mod", module)  # under torch.compile: the module inside
    try:
        signature = _signature(module.forward)
        named = dict(signature.bind_partial(*arguments, **keywords).arguments)
    except (TypeError, ValueError):  # wrong arguments, which the call will raise, or no signature
        return dict(keywords)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            named |= {f"{name}_{i}": one for i, one in enumerate(named.pop(name, ()))}
    return named


def _by_name(
    tensors: Iterable[tuple[str, str, Tensor]],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by their names; further ones of a name with that of the argument that holds them.

    In a list of dicts they have a number. With it the argument that holds each, "" where it is one.
    """
    found: dict[str, Tensor] = {}
    homes: dict[str, str] = {}
    for name, home, one in tensors:
        first = homes.get(name, home)
        own = name if plain(first) == plain(home) else f"{home}.{name}"
        again = (own if i == 0 else f"{own}[{i}]" for i in itertools.count())
        own = next(free for free in again if free not in found)
        found[own], homes[own] = one, home
    return found, homes


def _tensors(
    given: Mapping[str, Any], home: str = "", depth: int = 4
) -> Iterator[tuple[str, str, Tensor]]:
    """Every tensor in the inputs with its name, and with that of the argument that holds it.

    Those that are no part of another value come first.
    """
    inner: list[tuple[str, Mapping[str, Any]]] = []
    for name, one in given.items():
        if isinstance(one, Tensor):
            yield name, home, one
        elif isinstance(one, Mapping):
            inner.append((name, {str(key): value for key, value in one.items()}))
        elif isinstance(one, list | tuple) and not ("past" in name or "cache" in name):
            inner.append((name, {f"{name}[{i}]": value for i, value in enumerate(one)}))
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            names = (field.name for field in dataclasses.fields(one))
            inner.append((name, {name: getattr(one, name, None) for name in names}))
    if depth:
        for name, values in inner:
            yield from _tensors(values, name, depth - 1)
