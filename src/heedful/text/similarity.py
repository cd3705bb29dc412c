"""Word vectors: cosine similarity, nearest neighbours, analogies and principal components.

A table (V, d) has a row of d numbers for each of V words. All functions also accept NumPy arrays,
and then return NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.numpy_arrays import takes_arrays


class Nearest(NamedTuple):
    """Rows of a table and their cosine similarities, the most similar first."""

    rows: Tensor
    similarities: Tensor


@takes_arrays("a", "b")
def cosine(
    a: Float[Tensor, "*lead width"], b: Float[Tensor, "*other width"]
) -> Float[Tensor, "*both"]:
    """Compute the cosine similarity a · b / (‖a‖ ‖b‖), from −1 (opposite) to 1 (same direction).

    Raises:
        ArgumentError: a vector of zeros, which has no direction, or vectors of unequal lengths.

    >>> mom, dad, king = torch.tensor([[0.2, 0.7, 0.9], [0.9, 0.7, 0.9], [0.9, 0.5, 0.1]])
    >>> cosine(mom, dad), cosine(mom, king)  # document 001 (Pahwa): 0.88, 0.52
    (tensor(0.8802), tensor(0.5178))
    """
    _check_vectors(a=a, b=b)
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    _check_lengths(lengths)
    return (a * b).sum(dim=-1) / lengths


@takes_arrays("table", "vector")
def nearest(
    table: Float[Tensor, "words width"],
    vector: Float[Tensor, " width"],
    count: int = 10,
    leave_out: Sequence[int] = (),
) -> Nearest:
    """Return the rows of a table with the highest cosine similarity to a vector.

    Args:
        table: (V, d); rows of zeros are ignored.
        vector: (d,).
        count: the number of rows.
        leave_out: rows to exclude, such as the row of the word itself.

    Returns:
        at most `count` rows; equally similar rows in the order of the table.

    Raises:
        ArgumentError: a vector of zeros, or of another width than the table.

    >>> table = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    >>> nearest(table, torch.tensor([0.0, 1.0]), count=2).rows
    tensor([3, 1])
    """
    _check_vectors(table=table, vector=vector)
    length = vector.norm()
    _check_lengths(length)
    lengths = table.norm(dim=-1)
    similarities = (table @ vector) / (lengths * length)
    similarities[lengths == 0] = -torch.inf
    similarities[list(leave_out)] = -torch.inf
    number = min(count, int(similarities.isfinite().sum()))
    ordered = similarities.sort(descending=True, stable=True)
    return Nearest(ordered.indices[:number], ordered.values[:number])


def _check_vectors(**tensors: object) -> None:
    widths = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ArgumentError(
                f"{name} of type {type(tensor).__name__}",
                expected="a tensor or a NumPy array",
                remedy="torch.tensor and numpy.array convert lists",
            )
        if not tensor.is_floating_point():
            raise ArgumentError(f"{name} of {tensor.dtype}", expected="floating-point numbers")
        widths.add(tensor.shape[-1])
    if len(widths) > 1:
        sizes = " and ".join(map(str, sorted(widths)))
        raise ArgumentError(f"vectors of {sizes} numbers", expected="equally many numbers")


def _check_lengths(lengths: Tensor) -> None:
    if not bool((lengths > 0).all()):
        raise ArgumentError(
            "a vector of zeros",
            expected="a vector with a direction",
            cause="a token that was never trained, or an empty row",
        )


@takes_arrays("a", "b", "c")
def analogy(
    a: Float[Tensor, " width"], b: Float[Tensor, " width"], c: Float[Tensor, " width"]
) -> Float[Tensor, " width"]:
    """Compute the vector d of the analogy "a is to b as c is to d": b − a + c.

    Source: Mikolov et al. 2013, *Linguistic regularities in continuous space word
    representations* (NAACL); document 001, *Decoding the magic behind LLMs*, section 4.2.
    """
    _check_vectors(a=a, b=b, c=c)
    return b - a + c


class Plane(NamedTuple):
    """Coordinates (n, 2) on the first two principal axes, and each axis's share of the variance."""

    coordinates: Tensor
    shares: Tensor


@takes_arrays("vectors")
def principal_plane(vectors: Float[Tensor, "words width"]) -> Plane:
    """Compute the first two principal components of vectors.

    Source: Pearson 1901; computed by the singular value decomposition of the centred vectors.
    """
    centred = vectors.double() - vectors.double().mean(dim=0)
    left, sizes, right = torch.linalg.svd(centred, full_matrices=False)
    coordinates = torch.zeros(len(vectors), 2, dtype=torch.float64)
    shares = torch.zeros(2, dtype=torch.float64)
    axes = min(2, len(sizes))
    # The sign of an axis is arbitrary. With a positive largest component it is fixed
    signs = torch.sign(right[:axes].gather(1, right[:axes].abs().argmax(dim=1, keepdim=True))[:, 0])
    coordinates[:, :axes] = left[:, :axes] * sizes[:axes] * signs
    total = sizes.square().sum()
    shares[:axes] = sizes[:axes].square() / total if total > 0 else 0.0
    return Plane(coordinates, shares)
