"""The largest score of each head in a call of attention, without a map of its scores.

For query–key clipping, which asks at every step whether a head's largest score is above a limit.
A row's largest score is at most its log-sum-exp, which fused kernels tell beside their output:
where no row's is above the limit, no score is, and nothing is computed. The scores of a head that
has such a row are computed in blocks of rows, and only the largest is kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heedful.ops.arguments import Arguments
from heedful.ops.causes import HIDDEN, unrounded
from heedful.ops.kernels import four_axes, in_form
from heedful.ops.score_tables import ALL

ROWS = 128  # queries whose scores are computed at once


@torch.no_grad()
def largest_scores(
    arguments: Arguments, above: float = -math.inf, sums: Tensor | None = None
) -> Tensor:
    """The largest score of each head, (H,): scaled, with its bias, before softmax; over the batch.

    Scores that the mask hides do not count. A head none of whose scores is above `above` may have
    −inf instead.

    Args:
        arguments: a call's, checked; its query is (B, H, N, d).
        above: the limit below which nobody asks for the number.
        sums: (B, H, N), the log-sum-exp of each row, where it is known.

    >>> from heedful.ops.arguments import check
    >>> query = torch.tensor([[[[3.0], [2.0]], [[1.0], [-1.0]]]])
    >>> call = check(query, query, query, mask=None, bias=None, causal=True, scale=1.0, dropout=0.0)
    >>> largest_scores(call)
    tensor([9., 1.])
    """
    four = in_form(arguments)
    B, H = four.query.shape[:2]
    found = torch.full((B, H), -math.inf, dtype=torch.float32, device=four.query.device)
    asked = torch.ones_like(found, dtype=torch.bool)
    if sums is not None:
        is_below = sums.amax(dim=-1) <= _with_slack(
            above
        )  # NaN, of a row that sees nothing, is not
        asked = ~is_below.view(B, H)
    texts, heads = asked.nonzero(as_tuple=True)
    if len(texts):
        found[texts, heads] = _largest(four, texts, heads).to(found)
    return found.amax(dim=0)


def _with_slack(above: float) -> float:
    """A limit for log-sum-exps that a kernel rounded, in half precision to 2⁻⁸ of them."""
    return above - abs(above) / 100


def _largest(four: Arguments, texts: Tensor, heads: Tensor) -> Tensor:
    """Of some heads of some texts, (P,) each: (P,)."""
    kind = torch.promote_types(four.query.dtype, torch.float32)
    query = four.query[texts, heads].to(kind)
    key = four.key[texts, heads // four.groups].to(kind)
    N, best = query.shape[1], query.new_full((len(query),), -math.inf)
    with unrounded(query):
        for start in range(0, N, ROWS):
            rows = slice(start, min(start + ROWS, N))
            scores = query[:, rows] @ key.mT * four.scale
            if four.bias is not None:
                bias = torch.atleast_2d(four.bias)
                bias = bias if bias.shape[-2] == 1 else bias[..., rows, :]
                scores = scores + _of(bias, four, texts, heads)
            if four.mask is not None:
                allowed = four.mask.crop(four.shape, rows, ALL, query.device)
                scores = scores.masked_fill(~_of(allowed, four, texts, heads), HIDDEN)
            best = torch.maximum(best, scores.amax(dim=(1, 2)))
    return best.masked_fill(best <= HIDDEN / 2, -math.inf)


def _of(table: Tensor, four: Arguments, texts: Tensor, heads: Tensor) -> Tensor:
    """Some heads of some texts of a mask or a bias, (P, n, M), or (1, n, M) where all are alike."""
    table = four_axes(table, four.shape[:-2])
    b, h = table.shape[:2]
    if b == h == 1:
        return table[0]
    return table[texts if b > 1 else 0 * texts, heads if h > 1 else 0 * heads]
