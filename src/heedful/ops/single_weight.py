"""A single weight of a map with every step of its computation, from query · key to the weight."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import check_index, crop_table
from heedful.ops.inputs import MASKED_SCORE, AttentionInputs, no_autocast, scores, sinks_of
from heedful.ops.map_region import whole_rows


class OneWeight(NamedTuple):
    """The weight of one query on one key, step by step.

    query, key: (d,), as the model multiplied them: after rotary positions, if it has any.
    products: (d,), query · key in each dimension.
    product: the sum of `products`.
    scaled: product · scale.
    capped: after the soft cap; equal to `scaled` without a soft cap.
    bias: added to `capped`; 0 without a bias.
    score: the input of the softmax; −inf if the key is masked.
    log_sum_exp: of the scores of the row and of its sink; −inf if the query may attend to no key.
    weight: exp(score − log_sum_exp); 0 if the key is masked.
    scores: (M,), the scores of the row; −inf where masked.
    sink: the score of the learned sink; None without a sink.
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


def one_weight(inputs: AttentionInputs, head: int, query: int, key: int) -> OneWeight:
    """Compute one weight with all intermediate values.

    Args:
        inputs: query, key, mask, … of the map.
        head, query, key: indices from 0.

    Raises:
        ArgumentError: an index outside the map.

    >>> words = torch.tensor([[[1.0, 2.0], [0.0, 3.0]]])
    >>> result = one_weight(AttentionInputs(words, words, scale=0.5), head=0, query=0, key=1)
    >>> result.products.tolist(), result.scaled, round(result.weight, 4)
    ([0.0, 6.0], 3.0, 0.6225)
    """
    names, indices = ("head", "query", "key"), (head, query, key)
    for name, index, size in zip(names, indices, inputs.shape, strict=True):
        check_index(name, index, size)
    inputs = inputs.of_heads(slice(head, head + 1)).upcast()
    row, column = (torch.tensor([index], device="cpu") for index in (query, key))
    query_vector, key_vector = inputs.query[0, query], inputs.key[0, key]
    products = query_vector * key_vector
    scaled = float(products.sum()) * inputs.scale
    capped = scaled
    if inputs.softcap is not None:
        capped = float(inputs.softcap * math.tanh(scaled / inputs.softcap))
    weights, sums = whole_rows(inputs, row)
    with no_autocast(inputs.query):
        all_scores = scores(inputs, row)[0, 0]
    all_scores = all_scores.masked_fill(all_scores <= MASKED_SCORE / 2, -torch.inf)
    bias = 0.0 if inputs.bias is None else float(crop_table(inputs.bias, row, column))
    sink = None if inputs.sinks is None else float(sinks_of(inputs.sinks, row)[0, 0])
    return OneWeight(
        query_vector, key_vector, products, float(products.sum()), scaled, capped,
        bias, float(all_scores[key]), float(sums[0, 0]),
        float(weights[0, 0, key]), all_scores, sink,
    )  # fmt: skip
