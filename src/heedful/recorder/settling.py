"""Makes a kept call of what a door has seen, when it is first looked at.

A forward pass waits only for copies of queries, keys and a few rows of the output. What the axes
are of, what is padding, which structure the mask has, the kind of the call and the ids of its
tokens are worked out later, call by call in the order in which they ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.ops.masks import Mask
from heedful.recorder.doors import by_hand
from heedful.recorder.doors.cells import BATCH, KEYS, ONE, QUERIES, Cells, cells_of
from heedful.recorder.observed import AXES, Observed
from heedful.recorder.owners.inputs import Inputs
from heedful.recorder.owners.kind import crosses, kind_of
from heedful.recorder.owners.mask_structure import Masks
from heedful.recorder.owners.padding import tokens_of
from heedful.recorder.owners.padding_across_passes import Before, so_far
from heedful.recorder.owners.token_ids import Ids, TokenIds, given_by
from heedful.recorder.owners.told_axes import TokenAxes, axes_told_for, parsed_once, told_order
from heedful.recorder.owners.usual_order import (
    PARTS,
    TEXTS,
    Order,
    Sizes,
    usual_order,
    widths_of,
)
from heedful.recording.capture import Capture
from heedful.recording.evidence import Evidence
from heedful.recording.proof import Layout
from heedful.recording.real_tokens import RealTokens, distinct
from heedful.recording.replayed import are_given_by, check_replayed

TOLD = Layout("told")


class Seen(NamedTuple):
    """A call as it was seen, and what is known of where.

    observed: what the door saw, with copies of what the model may change.
    evidence: what it is checked against.
    index: the number of the call; inputs: those that tell of its texts.
    where: the modules that run, from the outermost on: names, and which run of each it is.
    module: the one that attends; lengths: the sizes of axes of what it was given.
    writes: whether it is in the decoder of a model that has an encoder too.
    reads_text: whether it is in no part for images or sound.
    """

    observed: Observed
    evidence: Evidence
    name: str
    layer: int | None
    index: int
    where: tuple[tuple[str, int], ...]
    pass_index: int
    inputs: Inputs
    module: nn.Module
    lengths: set[int]
    writes: bool
    reads_text: bool


class Arranged(NamedTuple):
    """A call with its axes in order: texts × parts, heads, queries, keys.

    weights: the map that a tape gives, of a call by hand.
    first, of_texts: the number of its first text, of how many, where it is of some texts alone.
    """

    observed: Observed
    evidence: Evidence
    layout: Layout
    texts: int
    parts: int
    weights: Tensor | None = None
    first: int = 0
    of_texts: int = 0


class Settling:
    """Settles the calls of one recording, in their order.

    Args:
        axes: what the user tells of the axes of queries.
        heads: the model's numbers of those that are kept; None is all.
        dtype: in which queries and keys are kept; None is their own.
        names_tokens: whether tokens are to be named by ids in the inputs of any model.
        miss: is told of a call that is not understood: its module's name, and the error.
    """

    def __init__(
        self,
        axes: Mapping[str, TokenAxes],
        heads: list[int] | None,
        dtype: torch.dtype | None,
        names_tokens: Callable[[Inputs, nn.Module], bool],
        miss: Callable[[str, Exception], None],
    ) -> None:
        self.axes, self.heads, self.dtype = axes, heads, dtype
        self.names_tokens, self.miss = names_tokens, miss
        self.refused: list[Seen] = []  # calls whose axes fit no rule, which `verify` may settle
        self._pass = -1
        self._token_ids = TokenIds()
        # of each module's last call: its number of keys with its pass, and what it told of padding
        self._lengths: dict[str, tuple[int, int]] = {}
        self._before: dict[str, Before | None] = {}
        self._begin(-1)

    def _begin(self, pass_index: int) -> None:
        """Forget what the layers of a pass share."""
        self._pass, self._masks = pass_index, Masks()
        self._tokens: list[tuple[tuple, tuple, tuple]] = []
        self._ids: dict[tuple, tuple[Ids, object]] = {}
        self._of_some: Counter[str] = Counter()  # calls of one text of several, by module

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, seen: Seen) -> Capture | None:
        """The call as it is kept; None where it is not understood, which is told."""
        if seen.pass_index != self._pass:
            self._begin(seen.pass_index)
        try:
            arranged = self.arranged(seen)
        except ArgumentError as error:
            self.refused.append(seen)
            self.miss(seen.name, error)
            return None
        except Exception as error:
            self.miss(seen.name, error)
            return None
        return self.kept(seen, arranged)

    def kept(self, seen: Seen, arranged: Arranged) -> Capture | None:
        """The call of an arrangement; None where it is not understood, which is told."""
        try:
            return self._capture(seen, arranged)
        except Exception as error:
            self.miss(seen.name, error)
            return None

    def arranged(self, seen: Seen) -> Arranged:
        """The call with its axes in order.

        Raises:
            ArgumentError: they fit no rule.
        """
        observed, inputs = seen.observed, seen.inputs
        texts, other = inputs.texts(observed.query.shape[-2])
        if observed.axes == AXES:
            B = len(observed.query)
            count = texts if texts and B % texts == 0 else B
            parts = max(1, B // max(1, count))
            return Arranged(observed, seen.evidence, TOLD, count, parts)
        cells = cells_of_call(observed)
        told = axes_told_for(self.axes, seen.name) or parsed_once(observed.axes)
        if told is not None:
            order, layout = told_order(told, cells, observed.texts or texts), TOLD
        else:
            order, layout = self._usual(seen, cells, texts, other)
        if observed.meeting is not None and not observed.meeting.has_product:
            layout = _of_weights_alone(order, layout, seen.lengths)
        arranged = in_order(seen, cells, order, layout)
        if texts and order.count(TEXTS) == 1 < texts and order.count(PARTS) == 1:
            number = self._of_some[seen.name]  # a loop over texts has a call for each
            self._of_some[seen.name] += 1
            arranged = arranged._replace(first=min(number, texts - 1), of_texts=texts)
        return arranged

    def _usual(
        self, seen: Seen, cells: Cells, texts: int | None, other: int | None
    ) -> tuple[Order, Layout]:
        """The usual order, of so many texts or else of so many others."""
        sizes = Sizes(texts, other, widths_of(seen.module), seen.lengths)
        try:
            return usual_order(cells, sizes)
        except ArgumentError:
            if other is None:
                raise
            return usual_order(cells, sizes._replace(texts=other, other_texts=texts))

    def _capture(self, seen: Seen, arranged: Arranged) -> Capture:
        observed, evidence = arranged.observed, arranged.evidence
        weights = arranged.weights
        if self.heads is not None and observed.query.shape[1] != len(self.heads):
            observed = observed.of_heads(self.heads)
            if observed.meeting is None:
                evidence = evidence.of_heads(self.heads)
            weights = None if weights is None else weights[:, self.heads]
        self._masks.split(observed)
        observed.cross = crosses(observed, seen.name)
        tokens = self._real_tokens(seen, observed, arranged.parts)
        narrow = None if self.dtype == observed.query.dtype else self.dtype
        if observed.meeting is not None and narrow is not None:
            observed.query, observed.key = observed.query.to(narrow), observed.key.to(narrow)
        made = Capture(
            seen.name, seen.layer, seen.pass_index, "self", observed.door,
            observed.query, observed.key, observed.value, observed.scale, tokens, evidence,
            observed.bias, observed.softcap, observed.sinks,
            heads=self.heads, index=seen.index, layout=arranged.layout,
            texts=max(arranged.texts, arranged.of_texts), parts=arranged.parts,
            first=arranged.first,
        )  # fmt: skip
        if observed.meeting is not None and weights is not None:
            made.checked = check_replayed(evidence, observed.meeting.used)
            if observed.door == by_hand.ALONE or not are_given_by(made, weights, narrow):
                made.tokens, made.weights = _with_weights(tokens, weights), weights
        made.kind = self._kind(seen, observed, made.tokens)
        ids = self._ids_of(seen, observed, made.tokens, made.kind, arranged.layout)
        made.ids, made.query_ids = ids.keys, ids.queries
        return made

    def _real_tokens(self, seen: Seen, observed: Observed, parts: int) -> list[RealTokens]:
        """The real tokens of each sequence; layers of a pass that share a mask share them."""
        inputs, before = seen.inputs, self._before.get(seen.name)
        real = inputs.real(observed, seen.writes)
        is_full = inputs.fills(observed) or parts > 1
        # known by their ids, as == of tensors compares entries; held, so that these stay theirs
        held = (observed.mask, observed.bias, real.keys, real.queries)
        key = (*map(id, held), *observed.shape, observed.cross, is_full)
        known = next((made for one, _, made in self._tokens if one == key), None)
        if known is None:
            real, now = so_far(observed, real, before, seen.pass_index)
            known = tokens_of(observed, real, is_full), now
            self._tokens = [*self._tokens[-7:], (key, held, known)]
        tokens, self._before[seen.name] = known
        return tokens

    def _kind(self, seen: Seen, observed: Observed, tokens: list[RealTokens]) -> str:
        """The kind of a call; keys that grew by its queries since the last call are a cache's."""
        N, name = observed.shape[2], seen.name
        # a cache may have room for more
        M = max((real.keys.numel() for real in distinct(tokens)), default=0)
        kind = kind_of(observed, name, tokens)
        before, last = self._lengths.get(name, (M, seen.pass_index))
        self._lengths[name] = M, seen.pass_index
        # inside one pass several queries may be others, such as means that ask what they are of
        may_grow = N == 1 or seen.pass_index > last
        has_grown = may_grow and 0 < M - before == N * max(1, seen.pass_index - last)
        return "causal" if kind == "cross" and not observed.cross and has_grown else kind

    def _ids_of(
        self, seen: Seen, observed: Observed, tokens: list[RealTokens], kind: str, layout: Layout
    ) -> Ids:
        """The ids of the tokens at queries and keys, by position; none of a guessed layout."""
        is_sure = layout.word != "guessed" and self.names_tokens(seen.inputs, seen.module)
        if not (is_sure and seen.reads_text):
            return Ids()
        # layers of one side that share a mask have the same tokens
        key = kind, *observed.shape, seen.writes, id(tokens), observed.cross, seen.inputs.number
        if key not in self._ids:
            given = given_by(seen.inputs, seen.writes)
            self._ids[key] = self._token_ids.of(observed, given, tokens), tokens
        return self._ids[key][0]


def cells_of_call(observed: Observed) -> Cells:
    """The axes of a call that are to be named: those of a softmax by hand, or of a kernel."""
    if observed.meeting is not None:
        return cells_of(observed.meeting)
    B, H, N, M = observed.shape
    kinds = [BATCH if size > 1 else ONE for size in (B, H)] + [QUERIES if N > 1 else ONE, KEYS]
    first = torch.arange(B * H, device="cpu").view(B, H, 1, 1)
    queries = first * N + torch.arange(N, device="cpu")[:, None]
    keys = first * M + torch.arange(M, device="cpu")
    query, key = observed.query, observed.key
    group = H // key.shape[1]
    key = key if group == 1 else key.repeat_interleave(group, dim=1)
    flat = (one.reshape(-1, one.shape[-1]) for one in (query, key))
    return Cells(kinds, (B, H, N, M), queries, keys, *flat)


def in_order(seen: Seen, cells: Cells, order: Order, layout: Layout) -> Arranged:
    """A call with the axes that an order gives."""
    texts, parts = order.count(TEXTS), order.count(PARTS)
    observed, evidence = seen.observed, seen.evidence
    if observed.meeting is not None:
        made = by_hand.read(observed, cells, order.arranged)
        if observed.value is not None:
            value = by_hand.values_of(observed, cells, order.arranged)
            made.seen.value = value.expand(len(made.weights), *value.shape[1:])
        return Arranged(made.seen, evidence, layout, texts, parts, made.weights)
    S, H, N, M = (order.count(role) for role in (TEXTS, "heads", QUERIES, KEYS))
    if (S * parts, H, N, M) == observed.shape:  # as a kernel has them
        return Arranged(observed, evidence, layout, texts, parts)
    return Arranged(*_moved(observed, evidence, cells, order), layout, texts, parts)


def _moved(
    observed: Observed, evidence: Evidence, cells: Cells, order: Order
) -> tuple[Observed, Evidence]:
    """A kernel's call with its axes in another order."""
    B, H, N, M = observed.shape

    def rows(table: Tensor) -> Tensor:
        """A table (B, H, n, …) of queries, each with all its numbers."""
        flat = order.arranged(cells.queries)[..., 0].to(table.device)
        return table.reshape(B * H * N, *table.shape[3:])[flat]

    def columns(table: Tensor) -> Tensor:
        group = H // table.shape[1]
        table = table if group == 1 else table.repeat_interleave(group, dim=1)
        flat = order.arranged(cells.keys)[:, :, 0].to(table.device)
        return table.reshape(B * H * M, *table.shape[3:])[flat]

    def whole(table: Tensor) -> Tensor:
        table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
        return order.arranged(table)

    query, key = rows(observed.query), columns(observed.key)
    moved = replace(observed, query=query, key=key.expand(len(query), *key.shape[1:]), sums=None)
    if observed.value is not None:
        moved.value = columns(observed.value).expand(len(query), -1, -1, -1)
    if isinstance(observed.mask, Tensor):
        moved.mask = whole(observed.mask)
    elif isinstance(observed.mask, Mask):
        moved.mask = whole(observed.mask.crop(observed.shape, device=query.device))
    if observed.bias is not None:
        moved.bias = whole(observed.bias)
    if evidence.values is None or evidence.outputs is None or query.shape[2] != N:
        why = evidence.why or "the axes of its kernel are others than those of its map"
        return moved, replace(evidence, why=why, values=None, outputs=None, sums=None)
    values = columns(evidence.values).expand(len(query), -1, -1, -1)
    few = order.arranged(cells.queries[:, :, :1])[:, :, 0, 0] // N  # of each (sequence, head)
    outputs = evidence.outputs.flatten(0, 1)[few.to(query.device)]
    return moved, replace(evidence, values=values, outputs=outputs, sums=None)


def _of_weights_alone(order: Order, layout: Layout, lengths: set[int]) -> Layout:
    """The layout of weights of a softmax of no product of queries and keys.

    Raises:
        TypeError: sizes that are those of no tokens, as of a softmax over features.
    """
    N, M = order.count(QUERIES), order.count(KEYS)
    if M not in lengths or (N > 1 and N not in lengths):
        raise TypeError("a softmax of no product of queries and keys, and over no axis of tokens")
    return Layout("guessed", layout.why or "no queries and keys were seen that made its scores")


def _with_weights(tokens: list[RealTokens], weights: Tensor) -> list[RealTokens]:
    """The tokens with masks that hide nothing which has a weight."""
    made: dict[int, RealTokens] = {}
    for row, real in enumerate(tokens):
        if id(real) in made:
            continue
        mask = real.mask
        if mask is not None:
            table = mask.crop((weights.shape[1], len(real.queries), len(real.keys)))
            own = weights[row][:, real.queries][:, :, real.keys]
            if bool((own.to(table.device).masked_fill(table, 0.0) > 0).any()):
                mask = None
        made[id(real)] = real._replace(mask=mask)
    return [made[id(real)] for real in tokens]
