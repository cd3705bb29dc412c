"""Attention rollout: how the attention of several layers combines."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError


def rollout(layers: Iterable[Iterable[Tensor]], query: int) -> Float[Tensor, " keys"]:
    """Compute the attention rollout of a query: its row of the product of all layers' attention.

    Each layer counts as A = (W̄ + I) / 2, where W̄ is the mean of its heads' weights and the identity
    stands for the residual connection; the result is the row `query` of A_L ⋯ A₂ A₁. It is computed
    row by row, in float64, so no matrix product is needed.

    The rollout ignores values, norms and feed-forward layers: a large share is no proof that a
    token caused an output.

    Source: Abnar and Zuidema 2020, *Quantifying Attention Flow in Transformers* (ACL).

    Args:
        layers: for each layer, the last one first, the weights (N, N) of each head.
        query: the index of the query.

    Returns:
        the share of each token (N,), float64; the shares sum to 1 unless the model has learned
        sinks or the mask excludes all keys of a row.

    Raises:
        ArgumentError: no layer, or weights that are not square or of unequal sizes.

    >>> first, second = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]]])
    >>> rollout([[second], [first]], query=1)
    tensor([0.6250, 0.3750], dtype=torch.float64)
    """
    shares: Tensor | None = None
    for heads in layers:
        rows = []  # of each head
        for weights in heads:
            if shares is None:
                shares = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
                shares[query] = 1
            if weights.shape != (len(shares), len(shares)):
                raise ArgumentError(
                    f"weights {tuple(weights.shape)} after {len(shares)} tokens",
                    expected="one text in every layer, (N, N)",
                    cause="cross-attention, pooling, or a pass with a cache",
                )
            rows.append(shares @ weights.double().nan_to_num(0))
        if shares is not None:
            shares = (shares + torch.stack(rows).mean(0)) / 2
    if shares is None:
        raise ArgumentError("no layer", expected="at least one")
    return shares
