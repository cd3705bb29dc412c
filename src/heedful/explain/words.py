"""From the last states to the words that a model thinks likely."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import overload

import torch
from torch import Tensor, nn

from heedful.explain.pieces import activated, linear, normed
from heedful.explain.stages import Formula, Stage, held
from heedful.models.bert import MaskedWordHead


class Names(Sequence[str]):
    """The text of each token of a vocabulary, made when it is asked for.

    >>> names = Names(3, lambda ids: [f"<{id}>" for id in ids])
    >>> len(names), names[2]
    (3, '<2>')
    """

    def __init__(self, size: int, pieces: Callable[[Iterable[int]], Sequence[str]]) -> None:
        self._size, self._pieces = size, pieces

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return self._pieces(range(*index.indices(self._size)))
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return self._pieces([index % self._size])[0]


def says(states: Stage, head: nn.Linear, tied: bool, where: str) -> list[Stage]:
    """Logits and probabilities (N, V) of the states from which they are made.

    They are as wide as the vocabulary, so each row is computed when it is asked for. `where` is
    the place that a token is likely for.
    """
    width, size = head.in_features, head.out_features
    about = "The token table itself, turned (tied weights)" if tied else "A table of its own"
    table = held(
        "W_vocabulary", head.weight.detach().T, "",
        f"{about}: {width} numbers for each of {size:,} tokens.", "width", columns="vocabulary",
    )  # fmt: skip
    vectors = states.numbers()
    bias = None if head.bias is None else head.bias.detach()

    @torch.no_grad()
    def raw(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        chosen = list(columns)
        own = None if bias is None else bias[chosen]
        return nn.functional.linear(vectors[list(rows)], head.weight.detach()[chosen], own)

    @torch.no_grad()
    def shares(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        return head(vectors[list(rows)]).float().softmax(-1)[:, list(columns)]

    @functools.lru_cache(maxsize=1)  # one is as wide as the vocabulary
    @torch.no_grad()
    def of_row(row: int) -> tuple[Tensor, float]:
        logits = head(vectors[row]).double()
        return logits, float(logits.exp().sum())

    def how(_: int, row: int, column: int) -> Formula:
        logits, total = of_row(row)
        return Formula("e^{} / {}", (float(logits[column]), total))

    shape = (len(vectors), size)
    made = f"logits = {states.name} · W_vocabulary" + ("" if bias is None else " + bias")
    logits = Stage(
        "logits", shape, made,
        f"A number for each of the {size:,} tokens: how well it fits {where}.",
        states.rows, "vocabulary", raw, (states, table), bias=bias,
    )  # fmt: skip
    return [
        table,
        logits,
        Stage("probabilities", shape, "probabilities = e^logit / sum of e^logit over all tokens",
              "Softmax: positive shares that sum to 1 in each row.",
              states.rows, "vocabulary", shares, how=how, sources=(logits,), reads="row"),
    ]  # fmt: skip


def masked_word_head(states: Stage, head: MaskedWordHead) -> list[Stage]:
    """A BERT's way from its last states to logits: a layer, an activation, a norm, the table."""
    made = head.transform(states.numbers())
    about = ("The weights of the masked-word head.", "A layer of the masked-word head.")
    found = linear("transformed", states, head.transform, made, "W_transform", about)
    found.append(activated(found[-1], head.activation))
    found.append(
        normed("normed", found[-1], head.norm, head.norm(found[-1].numbers()),
               "Brought to one size; the token table reads this.")
    )  # fmt: skip
    return [*found, *says(found[-1], head.output, tied=True, where="at this place")]
