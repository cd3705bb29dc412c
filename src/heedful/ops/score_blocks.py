"""Masked scores of neighbouring queries and keys, where the mask hides or shows most at once.

Keys that the mask hides from every query of a run are left out, and the mask is made only for keys
that some of these queries may see and others not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import as_slice, meeting
from heedful.ops.inputs import HIDDEN, AttentionInputs, rows_of


class Allowed(NamedTuple):
    """What some neighbouring queries may see.

    keys: all that any of them can see.
    parts: tables of those keys that some queries may see and others not: (which of `keys`, boolean
        (h or 1, n, keys of the part)). The keys in no part may be seen by every query.
    ahead: whether a query might see a key after itself.
    """

    keys: range
    parts: list[tuple[slice, Tensor]]
    ahead: bool

    def seen_by(self, queries: int) -> Tensor | int:
        """How many of the queries may see each key: (h or 1, m), or a number."""
        if not self.parts:
            return queries
        heads = max(len(part) for _, part in self.parts)
        counts = torch.full((heads, len(self.keys)), queries, device="cpu")
        for where, part in self.parts:
            counts[:, where] = part.sum(dim=-2).cpu()
        return counts

    def choices(self, queries: int, among: Tensor | None = None) -> Tensor:
        """How many keys each of the queries may see: (h or 1, n).

        Args:
            queries: how many there are.
            among: (n, m), the pairs that count; default all.
        """
        certain = torch.ones(len(self.keys), dtype=torch.bool, device="cpu")
        heads = max((len(part) for _, part in self.parts), default=1)
        counts = torch.zeros(heads, queries, dtype=torch.long, device="cpu")
        for where, part in self.parts:
            certain[where] = False
            counted = part if among is None else part & among[:, where]
            counts += counted.sum(dim=-1).cpu()
        if among is None:
            return counts + certain.sum()
        return counts + among[:, certain.to(among.device)].sum(dim=-1).cpu()

    def among(self, pairs: Tensor) -> Tensor:
        """Those of some pairs (n, m) that the mask allows: boolean (h or 1, n, m)."""
        heads = max((len(part) for _, part in self.parts), default=1)
        found = pairs.repeat(heads, 1, 1)
        for where, part in self.parts:
            found[..., where] &= part
        return found

    def of_heads(self, heads: slice) -> Allowed:
        """The same for some of the heads; only tables can differ between them."""
        cut = [(where, part[heads] if len(part) > 1 else part) for where, part in self.parts]
        return self._replace(parts=cut)


def allowed_to(of: AttentionInputs, queries: range, keys: range | None = None) -> Allowed:
    """What neighbouring queries may see, of a run of keys; by default of all that any can see."""
    own = queries.start + of.offset
    if keys is None:
        keys = range(of.shape[-1]) if of.mask is None else of.mask.span(queries, of.shape)
    if of.mask is None:
        return Allowed(keys, [], ahead=own + 1 < keys.stop)
    parts = []
    for part in _beside(keys, of.mask.certain(queries, of.shape)):
        rows, columns = as_slice(queries), as_slice(part)
        table = of.mask.crop(of.shape, rows, columns, of.query.device)
        table = table if table.ndim == 3 else table[None]
        parts.append((slice(part.start - keys.start, part.stop - keys.start), table))
    return Allowed(keys, parts, _ahead(keys, parts, own - keys.start))


def _ahead(keys: range, parts: list[tuple[slice, Tensor]], own: int) -> bool:
    """Whether a query might see a key after itself; `own` is the place of the first query.

    No, where all keys after the first query are in the last table, which hides those ahead.
    """
    if len(keys) <= own + 1:
        return False
    if not parts or parts[-1][0].stop < len(keys) or parts[-1][0].start > own + 1:
        return True
    where, part = parts[-1]
    return bool(part.triu(own + 1 - where.start).any())


def _beside(keys: range, certain: range) -> list[range]:
    """Keys that some may see and others not: all, or those before and after the certain ones."""
    certain = meeting(keys, certain)
    if not len(certain):
        return [keys] if len(keys) else []
    sides = range(keys.start, certain.start), range(certain.stop, keys.stop)
    return [part for part in sides if len(part)]


def fill_scores(
    scores: Tensor, of: AttentionInputs, heads: slice, queries: range, allowed: Allowed
) -> None:
    """Write the masked scores (h, n, m) of some heads, whole groups of those that share a key.

    `allowed` is of these heads; `of` is in its precision already.
    """
    rows, columns = as_slice(queries), as_slice(allowed.keys)
    group = of.shape[0] // of.key.shape[0]
    sharing = slice(heads.start // group, heads.stop // group)
    # The heads that share a key head are rows of one product, which multiplies by the scale too
    key = of.key[sharing, columns]
    query = of.query[heads, rows].reshape(len(key), group * len(queries), key.shape[-1])
    out = scores.view(*query.shape[:2], len(allowed.keys))
    torch.baddbmm(out, query, key.mT, beta=0, alpha=of.scale, out=out)
    if of.softcap is not None:
        scores.div_(of.softcap).tanh_().mul_(of.softcap)
    if of.bias is not None:
        bias = rows_of(of.bias, rows)
        bias = bias[heads] if bias.ndim == 3 and len(bias) > 1 else bias
        scores += bias if bias.shape[-1] == 1 else bias[..., columns]
        scores.clamp_(min=HIDDEN)
    hidden = scores.new_full((), HIDDEN)
    for where, table in allowed.parts:  # torch.where is three times as fast as masked_fill_
        part = scores[:, :, where]
        torch.where(table, part, hidden, out=part)
