"""Masked scores of a block of consecutive queries and keys.

Keys that are masked for every query of the block are left out. The mask is built only for keys that
some of these queries may attend to and others may not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import as_slice, crop_table, intersection, of_heads
from heedful.ops.inputs import MASKED_SCORE, AttentionInputs


class Allowed(NamedTuple):
    """Which keys each query of a run of n consecutive queries may attend to.

    keys: a range of m keys; by default, the keys outside it are masked for every query of the run.
    parts: a slice of `keys` and a boolean table (h or 1, n, keys of the slice), for keys that may
        be masked for some query. Every query may attend to each key outside these slices.
    ahead: whether some query may attend to a key after its own position.
    """

    keys: range
    parts: list[tuple[slice, Tensor]]
    ahead: bool

    def queries_per_key(self, queries: int) -> Tensor | int:
        """Count the queries that may attend to each key: (h or 1, m), or one int for all keys."""
        if not self.parts:
            return queries
        heads = max(len(part) for _, part in self.parts)
        counts = torch.full((heads, len(self.keys)), queries, device="cpu")
        for where, part in self.parts:
            counts[:, where] = part.sum(dim=-2).cpu()
        return counts

    def keys_per_query(self, queries: int, pairs: Tensor | None = None) -> Tensor:
        """Count the keys that each query may attend to: (h or 1, n).

        Args:
            queries: the number of queries, n.
            pairs: boolean (n, m), the pairs to count; default all.
        """
        common = torch.ones(len(self.keys), dtype=torch.bool, device="cpu")
        heads = max((len(part) for _, part in self.parts), default=1)
        counts = torch.zeros(heads, queries, dtype=torch.long, device="cpu")
        for where, part in self.parts:
            common[where] = False
            counted = part if pairs is None else part & pairs[:, where]
            counts += counted.sum(dim=-1).cpu()
        if pairs is None:
            return counts + common.sum()
        return counts + pairs[:, common.to(pairs.device)].sum(dim=-1).cpu()

    def allows(self, columns: Tensor) -> Tensor:
        """Return whether query n may attend to key columns[n] of `keys`: boolean (h or 1, n)."""
        result = ((columns >= 0) & (columns < len(self.keys)))[None]
        for where, part in self.parts:
            is_inside = (columns >= where.start) & (columns < where.stop)
            index = (columns - where.start).clamp(0, part.shape[-1] - 1).expand(len(part), -1)
            cells = part.gather(-1, index[..., None])[..., 0]
            result = torch.where(is_inside, cells, result)
        return result

    def of_heads(self, heads: slice) -> Allowed:
        """Select heads; only tables can differ between heads."""
        parts = [(where, of_heads(part, heads)) for where, part in self.parts]
        return self._replace(parts=parts)


def allowed_to(inputs: AttentionInputs, queries: range, keys: range | None = None) -> Allowed:
    """Return which keys of a run each query of a run may attend to.

    `keys` defaults to the mask's span, outside which all keys are masked for these queries.
    """
    mask, shape, position = inputs.mask, inputs.shape, queries.start + inputs.offset
    if keys is None:
        keys = range(shape[-1]) if mask is None else mask.span(queries, shape)
    if mask is None:
        return Allowed(keys, [], ahead=position + 1 < keys.stop)
    parts = []
    for part in _outside(keys, mask.common_span(queries, shape)):
        table = mask.crop(shape, as_slice(queries), as_slice(part), inputs.query.device)
        table = table if table.ndim == 3 else table[None]
        parts.append((slice(part.start - keys.start, part.stop - keys.start), table))
    return Allowed(keys, parts, _attends_ahead(keys, parts, position - keys.start))


def _attends_ahead(keys: range, parts: list[tuple[slice, Tensor]], position: int) -> bool:
    """Return whether a query may attend to a later key. The first query is at `position` of `keys`.

    If a later key is outside the tables, the result is True: every query may attend to such a key.
    """
    if len(keys) <= position + 1:
        return False
    if not parts or parts[-1][0].stop < len(keys) or parts[-1][0].start > position + 1:
        return True
    key_slice, table = parts[-1]
    return bool(table.triu(position + 1 - key_slice.start).any())


def _outside(keys: range, common: range) -> list[range]:
    """Return the parts of `keys` before and after `common`; every query may attend to `common`."""
    common = intersection(keys, common)
    if not len(common):
        return [keys] if len(keys) else []
    sides = range(keys.start, common.start), range(common.stop, keys.stop)
    return [part for part in sides if len(part)]


def fill_scores(
    scores: Tensor, inputs: AttentionInputs, heads: slice, queries: range, allowed: Allowed
) -> None:
    """Write the masked scores of some heads into `scores` (h, n, m).

    `heads` must contain all query heads of its key heads; `inputs` must be the result of
    `upcast()`; `allowed` must belong to these heads and queries.
    """
    rows, columns = as_slice(queries), as_slice(allowed.keys)
    group = inputs.shape[0] // inputs.key.shape[0]
    key_heads = slice(heads.start // group, heads.stop // group)
    # One product for all query heads that share a key head; it also multiplies by the scale
    key = inputs.key[key_heads, columns]
    query = inputs.query[heads, rows].reshape(len(key), group * len(queries), key.shape[-1])
    out = scores.view(*query.shape[:2], len(allowed.keys))
    torch.baddbmm(out, query, key.mT, beta=0, alpha=inputs.scale, out=out)
    if inputs.softcap is not None:
        scores.div_(inputs.softcap).tanh_().mul_(inputs.softcap)
    if inputs.bias is not None:
        scores += of_heads(crop_table(inputs.bias, rows, columns), heads)
        scores.clamp_(min=MASKED_SCORE)
    masked = scores.new_full((), MASKED_SCORE)
    for key_slice, table in allowed.parts:  # torch.where is three times as fast as masked_fill_
        part = scores[:, :, key_slice]
        torch.where(table, part, masked, out=part)
