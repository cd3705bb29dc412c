"""Attention written for reading: in loops, then as matrix products, with one head or several.

Read it from top to bottom. Each part computes the same numbers as the part before it, and as
`heedful.attention`, the fast implementation. The example is the six words of document 002 (after
Raschka). At first, only the second word is a query; every word is both a key and a value.

>>> from heedful.text.example_texts import EMBEDDINGS
>>> words = torch.tensor(EMBEDDINGS)  # 6 tokens, 3 numbers each
>>> scores = attention_scores(words[1], words)
>>> scores
tensor([0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])
>>> by_sum(scores)
tensor([0.1455, 0.2278, 0.2249, 0.1285, 0.1077, 0.1656])
>>> softmax(scores)
tensor([0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])
>>> context_vector(softmax(scores), words)
tensor([0.4419, 0.6515, 0.5683])

Next, every word is the query in turn. Finally, products of matrices replace the loops.

>>> context, weights = attention_in_loops(words, words, words, scale=1.0)
>>> context
tensor([[0.4421, 0.5931, 0.5790],
        [0.4419, 0.6515, 0.5683],
        [0.4431, 0.6496, 0.5671],
        [0.4304, 0.6298, 0.5510],
        [0.4671, 0.5910, 0.5266],
        [0.4177, 0.6503, 0.5645]])
>>> weights[0]
tensor([0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452])
>>> product, _ = attention_in_products(words, words, words, scale=1.0)
>>> torch.allclose(product, context)
True

Sizes: N queries, M keys, d width of queries and keys, v width of values. A mask is boolean, True =
may attend. NumPy arrays in, NumPy arrays out.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heedful.ops.numpy_arrays import ARGUMENTS, takes_arrays

# One query, in loops (document 002, part 1)


@takes_arrays("a", "b")
def dot_product(a: Float[Tensor, " width"], b: Float[Tensor, " width"]) -> Float[Tensor, ""]:
    """Multiply two vectors number by number and add the products.

    The result is large if the vectors point in the same direction.

    >>> dot_product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    total = torch.zeros_like(a[0])
    for x, y in zip(a, b, strict=True):
        total = total + x * y
    return total


@takes_arrays("query", "key")
def attention_scores(
    query: Float[Tensor, " width"], key: Float[Tensor, "keys width"]
) -> Float[Tensor, " keys"]:
    """Return the dot product of one query (d,) with each key (M, d): how well they match."""
    return torch.stack([dot_product(query, k) for k in key])


@takes_arrays("scores")
def by_sum(scores: Float[Tensor, "*lead keys"]) -> Float[Tensor, "*lead keys"]:
    """Divide the scores by their sum, so that they add up to 1: the simplest normalisation.

    It works only for positive scores. With a negative score, weights can be negative or exceed 1.
    If the scores sum to 0, the division fails.

    >>> by_sum(torch.tensor([1.0, 2.0, -2.5]))
    tensor([ 2.,  4., -5.])
    >>> by_sum(torch.tensor([1.0, 2.0, -3.0]))
    tensor([inf, inf, -inf])
    """
    return scores / scores.sum(dim=-1, keepdim=True)


@takes_arrays("scores")
def softmax(scores: Float[Tensor, "*lead keys"]) -> Float[Tensor, "*lead keys"]:
    """Divide e to the power of each score by the sum of these powers: the usual normalisation.

    Powers of e are positive for any score, so every weight lies between 0 and 1.

    >>> softmax(torch.tensor([1.0, 2.0, -3.0]))
    tensor([0.2676, 0.7275, 0.0049])

    The largest score is subtracted first. This divides every power by the same number, so the
    weights do not change, and no power exceeds 1. Without this step, large scores overflow:

    >>> scores = torch.tensor([100.0, 99.0])
    >>> by_sum(scores.exp())
    tensor([nan, nan])
    >>> softmax(scores)
    tensor([0.7311, 0.2689])
    """
    return by_sum((scores - scores.amax(dim=-1, keepdim=True)).exp())


@takes_arrays("weights", "value")
def context_vector(
    weights: Float[Tensor, " keys"], value: Float[Tensor, "keys value_width"]
) -> Float[Tensor, " value_width"]:
    """Multiply each value (M, v) by its weight (M,) and add the products, (v,)."""
    total = torch.zeros_like(value[0])
    for weight, v in zip(weights, value, strict=True):
        total = total + weight * v
    return total


# Masks: two methods that give the same weights (document 003, also after Raschka)


@takes_arrays("scores", "mask")
def renormalized_softmax(
    scores: Float[Tensor, "*lead keys"], mask: Bool[Tensor, "*#lead #keys"]
) -> Float[Tensor, "*lead keys"]:
    """Mask after softmax: multiply the weights by the mask, then divide the products by their sum.

    The mask multiplies the weights, not the scores: e⁰ = 1, so a score of 0 still gets a weight. A
    query that may attend to no key gets zeros instead of 0/0.

    This method fails if a masked score is so large that the weights of all other keys round to 0:

    >>> first_is_masked = torch.tensor([False, True, True])
    >>> renormalized_softmax(torch.tensor([200.0, 1.0, 2.0]), first_is_masked)
    tensor([nan, nan, nan])
    """
    weights = softmax(scores) * mask
    empty = ~mask.any(dim=-1, keepdim=True)
    return weights / weights.sum(dim=-1, keepdim=True).masked_fill(empty, 1.0)


@takes_arrays("scores", "mask")
def masked_softmax(
    scores: Float[Tensor, "*lead keys"], mask: Bool[Tensor, "*#lead #keys"]
) -> Float[Tensor, "*lead keys"]:
    """Mask before softmax, the usual method: set masked scores to −∞, since e^−∞ = 0.

    It normalises once, and masked scores cannot affect the weights of other keys. If a query
    may attend to no key, softmax gives NaN (−∞ − (−∞)), which the last step replaces by zeros.

    >>> masked_softmax(torch.tensor([200.0, 1.0, 2.0]), torch.tensor([False, True, True]))
    tensor([0.0000, 0.2689, 0.7311])
    >>> scores, causal = torch.zeros(3, 3), torch.ones(3, 3, dtype=torch.bool).tril()
    >>> masked_softmax(scores, causal)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> torch.equal(masked_softmax(scores, causal), renormalized_softmax(scores, causal))
    True
    """
    masked = ~mask
    return softmax(scores.masked_fill(masked, float("-inf"))).masked_fill(masked, 0.0)


# All queries: in loops, then as matrix products


@takes_arrays(*ARGUMENTS)
def attention_in_loops(
    query: Float[Tensor, "queries width"],
    key: Float[Tensor, "keys width"],
    value: Float[Tensor, "keys value_width"],
    *,
    mask: Bool[Tensor, "queries keys"] | None = None,
    bias: Float[Tensor, "queries keys"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "queries value_width"], Float[Tensor, "queries keys"]]:
    """Compute the context (N, v) and the weights (N, M) of N queries, one query after the other.

    Args:
        query, key, value: (N, d), (M, d), (M, v).
        mask: (N, M), True = may attend.
        bias: (N, M), added to the scaled scores.
        scale: factor of the scores; default 1/√d, since dot products of wider vectors have a larger
            variance (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1).
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    contexts, weights = [], []
    for n in range(len(query)):
        scores = attention_scores(query[n], key) * scale
        if bias is not None:
            scores = scores + bias[n]
        weights.append(softmax(scores) if mask is None else masked_softmax(scores, mask[n]))
        contexts.append(context_vector(weights[n], value))
    return torch.stack(contexts), torch.stack(weights)


@takes_arrays(*ARGUMENTS)
def attention_in_products(
    query: Float[Tensor, "*lead queries width"],
    key: Float[Tensor, "*lead keys width"],
    value: Float[Tensor, "*lead keys value_width"],
    *,
    mask: Bool[Tensor, "*#lead #queries #keys"] | None = None,
    bias: Float[Tensor, "*#lead #queries #keys"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "*lead queries value_width"], Float[Tensor, "*lead queries keys"]]:
    """Compute `attention_in_loops` with matrix products: query · keyᵀ holds all dot products.

    Products batch over leading axes, such as sequences and heads.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    weights = softmax(scores) if mask is None else masked_softmax(scores, mask)
    return weights @ value, weights
