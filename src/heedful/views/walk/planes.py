"""Planes on which a walk draws a token's query among the keys, and the move of its vector."""

from __future__ import annotations

import itertools

import torch
from matplotlib.figure import Figure
from torch import Tensor

from heedful.explain import Explanation, Section, Stage
from heedful.pictures import word_plane
from heedful.pictures.labels import label
from heedful.text.similarity import axes_along

MOST, STEPS = 40, 6  # maximum number of keys, and of tokens whose value has its own arrow


def query_and_keys(walk: Explanation, section: Section, row: int) -> Figure:
    """Draw a token's query as an arrow, and the keys that it may attend to, with their weights.

    The first axis is the direction of the query, so that a key's coordinate is proportional to its
    score. Keys and queries of two numbers are drawn at these coordinates.
    """
    weights = section.stage("weights")
    queries, keys = (_numbers(walk, stage) for stage in section.stage("scores").factors or ())
    shares = _numbers(walk, weights)[row]
    chosen = shares.topk(min(MOST, int((shares > 0).sum()))).indices.sort().values
    query, keys = queries[row], keys[chosen]
    axes = axes_along(query, keys)
    points = torch.stack([*keys, torch.zeros_like(query), query]) @ axes.T
    names, word = walk.labels(weights.columns), label(walk.tokens[row])
    labels = [f"{label(names[key])} {shares[key]:.2f}" for key in chosen.tolist()]
    return word_plane.words(
        points.numpy(), [*labels, "0", f"query of {word}"],
        axes=_names(axes, f"along the query of {word}: score / {query.norm():.2f}", "keys"),
        arrows=[(len(keys), len(keys) + 1)], dots=len(keys),
        title=f"The query of {word} among the keys, with attention weights",
    )  # fmt: skip


def moved_word(walk: Explanation, section: Section, row: int) -> Figure:
    """Draw the sum of a token's vector and the projected, weighted values, as a chain of arrows."""
    stages = {stage.kind: stage for stage in section.stages if stage.kind != "table"}
    vectors, values, weights = (
        _numbers(walk, stages[kind]) for kind in ("embeddings", "value", "weights")
    )
    moves = weights[row, :, None] * (values @ _numbers(walk, section.stage("W_output")))
    order = moves.norm(dim=1).argsort(descending=True)
    count = len(order) if len(order) <= STEPS + 1 else STEPS
    names = [label(token) for token in walk.tokens]
    ends = [f"+ {weights[row, i]:.2f} {names[i]}" for i in order[:count].tolist()]
    terms = [vectors[row], *moves[order[:count]]]
    if count < len(order):
        ends.append(f"+ {len(order) - count} others")
        terms.append(moves[order[count:]].sum(dim=0))
    path = torch.stack(terms).cumsum(dim=0)
    axes = axes_along(path[-1] - path[0], vectors)
    corners = [row, *range(len(names), len(names) + len(ends))]
    return word_plane.words(
        (torch.cat([vectors, path[1:]]) @ axes.T).numpy(), [*names, *ends],
        axes=_names(axes, f"along the move of {names[row]}", "embeddings"),
        arrows=list(itertools.pairwise(corners)), dots=len(names),
        title=f"{names[row]}, moved by the values of the tokens that it attends to",
    )  # fmt: skip


def _numbers(walk: Explanation, stage: Stage) -> Tensor:
    rows, columns = (range(size) for size in stage.shape[-2:])
    return stage.of_head(walk.head, walk.heads, rows, columns).double()


def _names(axes: Tensor, first: str, vectors: str) -> tuple[str, str]:
    if axes.shape[1] == 2:
        return "dimension 0", "dimension 1"
    return first, f"across: first principal component of the {vectors}"
