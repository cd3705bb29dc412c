"""One weight of a map, with all that makes it: from query · key to its share of the row."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.inputs import HIDDEN, AttentionInputs, rows_of, scores, sinks_of, unrounded
from heedful.ops.map_region import whole_rows


class OneWeight(NamedTuple):
    """What makes the weight of one query on one key, step by step.

    query, key: (d,), as the model multiplied them, turned by their positions where it turns them.
    products: (d,), query · key dimension by dimension; their sum is `product`.
    scaled: product · scale. capped: after the soft cap; the same without one. bias: what is added.
    score: what the softmax gets; −inf where the mask hides the key.
    log_sum_exp: of the row, with its sink; −inf where the query may see nothing.
    weight: exp(score − log_sum_exp), 0 where hidden.
    scores: (M,), the scores of the whole row, −inf where hidden.
    sink: the score of attending to nothing; None without one.
    """

    query: Tensor
    key: Tensor
    products: Tensor
    product: float
    scaled: float
    capped: float
    bias: float
    score: float
    log_sum_exp: float
    weight: float
    scores: Tensor
    sink: float | None


def one_weight(causes: AttentionInputs, head: int, query: int, key: int) -> OneWeight:
    """Take one weight apart.

    Args:
        causes: see `AttentionInputs`.
        head, query, key: its place, whole numbers from 0.

    Raises:
        ArgumentError: a place outside the map.

    >>> words = torch.tensor([[[1.0, 2.0], [0.0, 3.0]]])
    >>> found = one_weight(AttentionInputs(words, words, scale=0.5), head=0, query=0, key=1)
    >>> found.products.tolist(), found.scaled, round(found.weight, 4)
    ([0.0, 6.0], 3.0, 0.6225)
    """
    for what, at, size in zip(
        ("head", "query", "key"), (head, query, key), causes.shape, strict=True
    ):
        if not 0 <= at < size:
            raise ArgumentError(f"{what} {at}", expected=f"0 to {size - 1}")
    of = causes.of_heads(slice(head, head + 1)).in_precision()
    row = torch.tensor([query], device="cpu")
    asked, offered = of.query[0, query], of.key[0, key]
    products = asked * offered
    scaled = float(products.sum()) * of.scale
    capped = scaled
    if of.softcap is not None:
        capped = float(of.softcap * math.tanh(scaled / of.softcap))
    whole, sums = whole_rows(of, row)
    with unrounded(of.query):
        all_scores = scores(of, row)[0, 0]
    all_scores = all_scores.masked_fill(all_scores <= HIDDEN / 2, -torch.inf)
    sink = None if of.sinks is None else float(sinks_of(of.sinks, row)[0, 0])
    return OneWeight(
        asked, offered, products, float(products.sum()), scaled, capped, _bias(of, query, key),
        float(all_scores[key]), float(sums[0, 0]), float(whole[0, 0, key]), all_scores, sink,
    )  # fmt: skip


def _bias(of: AttentionInputs, query: int, key: int) -> float:
    if of.bias is None:
        return 0.0
    row = rows_of(of.bias, torch.tensor([query], device="cpu"))
    row = row.reshape(-1, row.shape[-1])[0]
    return float(row[0 if len(row) == 1 else key])
