"""One call of attention as it happened, for a whole batch; and how it proves itself.

B batch, H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.causes import Causes, weights
from heedful.ops.masks import Causal, Dense, Mask, Packed
from heedful.recorder.recognise import is_causal, recognise

CROSSING = ("cross", "encoder_attn", "encdec")  # in the names of modules
SAMPLED = 8  # rows of each sequence on which a call is checked

# The worst difference that rounding explains, in units of the largest output
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


@dataclass
class Seen:
    """What a door saw of a call, in the words that all doors share.

    query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v) as the model used
    it. `mask` is one of ours, boolean with True = may attend, or None; `bias` is added to the
    scaled scores. Both broadcast to (B, H, N, M). `keep` (B, M) says which keys are no padding,
    where the call itself was told, and `why` why no output can be compared, where none can.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    output: Tensor | None
    scale: float
    mask: Mask | Tensor | None = None
    bias: Tensor | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    door: str = ""
    cross: bool | None = None
    keep: Tensor | None = None
    why: str = ""

    def of_heads(self, heads: Sequence[int]) -> Seen:
        """Some of the heads, each with a key head of its own."""
        H = self.query.shape[1]
        wrong = [head for head in heads if not 0 <= head < H]
        if wrong:
            raise ArgumentError(f"head {wrong[0]}", expected=f"heads from 0 to {H - 1}")
        wanted = torch.tensor(heads)
        shared = wanted // (H // self.key.shape[1])

        def cut(table: Tensor | None) -> Tensor | None:
            if table is None or table.ndim < 3 or table.shape[-3] == 1:
                return table
            return table[..., wanted, :, :]

        return replace(
            self,
            query=self.query[:, wanted],
            key=self.key[:, shared],
            value=None if self.value is None else self.value[:, shared],
            output=None if self.output is None else self.output[:, wanted],
            mask=cut(self.mask) if isinstance(self.mask, Tensor) else self.mask,
            bias=cut(self.bias),
            sinks=None if self.sinks is None else self.sinks[wanted],
        )

    def mask_of(self, sequence: int) -> Mask | None:
        """The mask of one sequence, over its (H, N, M)."""
        if self.mask is None or isinstance(self.mask, Causal):
            return self.mask
        if isinstance(self.mask, Mask):
            B, H, N, _ = self.query.shape
            table = self.mask.crop((B, H, N, self.key.shape[2]), device=self.query.device)
        else:
            table = self.mask
        return Dense(of_sequence(table, sequence))

    def causes(self, sequence: int) -> Causes:
        """What the weights of one sequence are a function of."""
        return Causes(
            self.query[sequence],
            self.key[sequence],
            self.scale,
            self.mask_of(sequence),
            None if self.bias is None else of_sequence(self.bias, sequence),
            self.cap,
            self.sinks,
        )


@dataclass
class Check:
    """How far weights @ values was from the output that the model used, on sampled rows.

    `worst` is in units of the largest output; NaN where it cannot be told, and `why` says why.
    """

    worst: float
    tolerance: float
    rows: int
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.tolerance


class Layout(NamedTuple):
    """What of a sequence is no padding, and its mask as a structure.

    queries, keys: indices of the real ones.
    mask: over them, None where all may attend.
    """

    queries: Tensor
    keys: Tensor
    mask: Mask | None


@dataclass
class Capture:
    """A call as it is kept: copies, which nothing that runs later can change.

    `layouts` has one for each sequence of the batch; `check` says how the call proved itself.
    """

    name: str
    layer: int
    forward: int
    kind: str
    door: str
    query: Tensor
    key: Tensor
    value: Tensor | None
    scale: float
    layouts: list[Layout]
    check: Check
    bias: Tensor | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    ids: Tensor | None = None

    def causes(self, sequence: int) -> Causes:
        """What the weights of one sequence, without its padding, are a function of."""
        queries, keys, mask = self.layouts[sequence]
        bias = None if self.bias is None else of_sequence(self.bias, sequence)
        if bias is not None:
            bias = bias if bias.shape[-2] == 1 else bias[..., queries, :]
            bias = bias if bias.shape[-1] == 1 else bias[..., keys]
        return Causes(
            take(self.query[sequence], queries),
            take(self.key[sequence], keys),
            self.scale,
            mask,
            bias,
            self.cap,
            self.sinks,
        )

    def tokens(self, sequence: int) -> Tensor | None:
        """(M,), the ids of the keys without padding, where they are known."""
        if self.ids is None:
            return None
        return self.ids[sequence % len(self.ids)][self.layouts[sequence].keys]

    def values(self, sequence: int) -> Tensor | None:
        """(G, M, v) without padding, where values were kept."""
        if self.value is None:
            return None
        return take(self.value[sequence], self.layouts[sequence].keys)


def take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of a tensor (heads, N, d): a view where they stand together, as all real tokens do."""
    if not len(rows):
        return tensor[:, :0]
    first, last = int(rows[0]), int(rows[-1])
    return tensor[:, first : last + 1] if last - first + 1 == len(rows) else tensor[:, rows]


def captured(
    seen: Seen,
    *,
    name: str,
    layer: int,
    forward: int,
    layouts: list[Layout],
    heads: Collection[int] | None = None,
    values: bool = False,
    dtype: torch.dtype | None = None,
    ids: Tensor | None = None,
) -> Capture:
    """Check a call against the output that the model used, and copy what is to be kept."""
    check = certify(seen)
    if heads is not None:
        seen = seen.of_heads(sorted(heads))
        layouts = [one._replace(mask=_of_heads(one.mask, sorted(heads))) for one in layouts]
    return Capture(
        name,
        layer,
        forward,
        _kind(seen, name, layouts),
        seen.door,
        _copy(seen.query, dtype),
        _copy(seen.key, dtype),
        _copy(seen.value, dtype) if values and seen.value is not None else None,
        seen.scale,
        layouts,
        check,
        None if seen.bias is None else seen.bias.detach(),
        seen.cap,
        None if seen.sinks is None else seen.sinks.detach().clone(),
        ids,
    )


def of_weights(weights: Tensor, door: str) -> Seen:
    """A call of which only the weights (B, H, N, M) are known."""
    B, H, N, M = weights.shape
    # softmax(log W) is W: the map itself is the bias, of queries and keys that say nothing
    nothing = weights.new_zeros(())
    return Seen(
        nothing.expand(B, H, N, 1),
        nothing.expand(B, H, M, 1),
        None,
        None,
        1.0,
        bias=weights.detach().float().log(),
        door=door,
        why="only the weights are known",
    )


def layouts_of(
    seen: Seen, real_keys: Tensor | None = None, real_queries: Tensor | None = None
) -> list[Layout]:
    """For each sequence what is no padding, and the mask over it, recognised.

    Args:
        seen: the call.
        real_keys: (B, M), true for keys that are no padding; default all.
        real_queries: (B, N); by default a query is as real as the key at its position.
    """
    B, H, N, _ = seen.query.shape
    M = seen.key.shape[2]
    found = []
    for b in range(B):
        queries, keys = torch.arange(N), torch.arange(M)
        if real_keys is not None:
            keys = real_keys[b % len(real_keys)].bool().nonzero()[:, 0].cpu()
        if real_queries is not None:
            queries = real_queries[b % len(real_queries)].bool().nonzero()[:, 0].cpu()
        elif real_keys is not None and not seen.cross:
            queries = keys - (M - N)  # a query stands at the position of its key
            queries = queries[queries >= 0]
        mask = seen.mask_of(b)
        if mask is not None and (len(queries) < N or len(keys) < M):
            mask = Dense(mask.crop((H, N, M), queries, keys))
        found.append(Layout(queries, keys, recognise(mask, (H, len(queries), len(keys)))))
    return found


def crosses(seen: Seen, name: str) -> bool:
    """Whether keys are of another sequence than queries: as a door says, or the module's name."""
    end = ".".join(name.lower().split(".")[-2:])
    return any(part in end for part in CROSSING) if seen.cross is None else seen.cross


def _kind(seen: Seen, name: str, layouts: list[Layout]) -> str:
    N, M = seen.query.shape[2], seen.key.shape[2]
    if crosses(seen, name):
        return "cross"
    if any(is_causal(layout.mask) for layout in layouts) or (N == 1 and M > 1):
        return "causal"
    return "self" if N == M else "cross"


def _of_heads(mask: Mask | None, heads: list[int]) -> Mask | None:
    """A mask for chosen heads; only bits can have rows for each."""
    if isinstance(mask, Packed) and mask.bits.ndim > 2 and mask.bits.shape[-3] > 1:
        return Packed(mask.bits[..., heads, :, :], mask.keys)
    return mask


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    kept = tensor.new_empty(tensor.shape, dtype=dtype or tensor.dtype)  # each head's rows together
    return kept.copy_(tensor)


def of_sequence(table: Tensor, sequence: int) -> Tensor:
    """A table that broadcasts to (B, H, N, M), of one sequence: (1 or H, N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]


def _kinds(seen: Seen) -> set[torch.dtype]:
    return {tensor.dtype for tensor in (seen.query, seen.output) if tensor is not None}


@torch.no_grad()
def certify(seen: Seen) -> Check:
    """Compare recomputed rows with the output that the model really used."""
    tolerance = max(TOLERANCE.get(kind, 1e-2) for kind in _kinds(seen))  # autocast narrows inside
    if seen.dropout:
        return Check(float("nan"), tolerance, 0, "weights were dropped at random")
    if seen.value is None or seen.output is None:
        return Check(float("nan"), tolerance, 0, seen.why)
    N = seen.query.shape[2]
    rows = torch.linspace(0, N - 1, min(N, SAMPLED)).long().unique()
    worst, size = 0.0, 1e-30
    for sequence in range(len(seen.query)):
        causes = seen.causes(sequence)
        map_ = weights(causes, queries=rows)
        value = seen.value[sequence].to(map_)
        used = seen.output[sequence][:, rows].to(map_)
        # heads that share a value are rows of one product, so that no value is repeated
        made = (map_.reshape(len(value), -1, map_.shape[-1]) @ value).reshape(used.shape)
        # what a row that sees nothing holds differs from kernel to kernel, and is no attention
        same = (map_ == 0).all(dim=-1, keepdim=True) | (made.isnan() & used.isnan())
        difference = (made - used).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
        worst = max(worst, float(difference.max()))
        size = max(size, float(used.abs().masked_fill(same, 0.0).max()))
    return Check(worst / size, tolerance, len(rows))
