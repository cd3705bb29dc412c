"""Whether a head looks everywhere alike, which as a picture is one colour that says nothing."""

from __future__ import annotations

import numpy as np

NEARLY = 0.005  # of the share: what no colour would show


def even(weights: np.ma.MaskedArray) -> str | None:
    """The share of each key, in words, where each query spreads its weight evenly; else None.

    Args:
        weights: (N, M), hidden cells masked; those of a pooled map are no weights.

    >>> even(np.ma.masked_array(np.full((2, 4), 0.25)))
    '1/4'
    >>> later = np.triu(np.ones((3, 3)), 1) > 0
    >>> even(np.ma.masked_array([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]], later))
    '1/keys in sight'
    >>> even(np.ma.masked_array(np.eye(3)))
    """
    seen = (~np.ma.getmaskarray(weights)).sum(axis=1)
    if weights.size < 2 or not (seen > 1).any():
        return None
    share = 1 / np.maximum(seen, 1)[:, None]
    if (abs(weights - share) > NEARLY * share).any():
        return None
    return f"1/{seen.max():,}" if seen.min() == seen.max() else "1/keys in sight"
