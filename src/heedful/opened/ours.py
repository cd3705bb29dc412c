"""What an opened model of heedful does beside: its steps, its tables, and what it is for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.opened.protocol import Opened
from heedful.ops import Steps
from heedful.text.vectors import WordVectors

SOME = "a model of `heedful train`, a GPT-2, a BERT or a Llama"


class Reading(NamedTuple):
    """The tokens that ask and those that answer, and what each layer does with them."""

    queries: list[str]
    keys: list[str]
    layers: Iterator[Steps]


class Attention(NamedTuple):
    """What chosen heads do on a text, and the labels of its tokens.

    heads: (layer, head) to steps of (N, M), float32 on the CPU. queries, keys: N and M labels.
    """

    heads: dict[tuple[int, int], Steps]
    queries: list[str]
    keys: list[str]


class Positions(NamedTuple):
    """How a model knows where a token stands: a word for it, and its table, a row for each place.

    Of rotary positions the table has the cosines of the angles.
    """

    kind: str
    table: Tensor


@dataclass(frozen=True)
class OpenedOurs(Opened):
    """A model of heedful with its tokenizer."""

    model: Any
    described: ClassVar[str] = SOME  # what an error expects where it wants one
    purpose: ClassVar[str]  # what to do with one
    hides: ClassVar[bool] = False  # whether a mask hides tokens that a query could see

    @property
    def layers(self) -> int:
        """Its layers of attention: those of `steps`."""
        return self.model.config.layers

    @property
    def heads(self) -> int:
        """The query heads of each layer."""
        return self.model.config.heads

    @property
    @abstractmethod
    def positions(self) -> Positions:
        """How it knows where a token stands."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable label for each token; a row of the model without a token has its number."""
        size = self.tokenizer.size
        return [self.tokenizer.pieces([id])[0] if id < size else f"#{id}" for id in ids]

    def steps(self, text: str, second: str | None = None, *, cut: bool = False) -> Reading:
        """How the tokens of a text or a pair see each other; arguments and errors as `read`.

        Each layer's are made when they are asked for, (1, H, N, N).
        """
        given = self.read(text, second, cut=cut)
        names = given.tokens
        layers = without_gradients(self.model.steps(*given.arguments, **given.keywords))
        return Reading(names, names, layers)

    @torch.inference_mode()
    def attention(
        self,
        text: str,
        heads: Collection[tuple[int, int]],
        second: str | None = None,
        *,
        cut: bool = False,
    ) -> Attention:
        """The steps of chosen heads, (layer, head) each; a layer's other heads are let go at once.

        Other arguments and errors as `read`.
        """
        reading = self.steps(text, second, cut=cut)
        kept = {}
        for layer, steps in enumerate(reading.layers):
            for head in (head for wanted, head in heads if wanted == layer):
                kept[layer, head] = Steps(*(t[0, head].float().cpu().clone() for t in steps))
        return Attention(kept, reading.queries, reading.keys)

    def vectors(self) -> WordVectors:
        """Its tokens as words, each with its row of the model's table.

        Raises:
            ArgumentError: a model without one table of tokens.
        """
        names = self.pieces(range(self.tokenizer.size))
        # a model's table may have more rows than its tokenizer has tokens
        return WordVectors(names, self.model.tokens.weight[: len(names)].detach().float().numpy())


@torch.no_grad()
def without_gradients(layers: Iterator[Steps]) -> Iterator[Steps]:
    """The same, each computed without keeping what its gradients would need."""
    yield from layers


def refuse_second(second: str | None, model: str) -> None:
    """Refuse a second text.

    Args:
        second: none, or the text.
        model: what reads one alone, such as "a GPT".

    Raises:
        ArgumentError: there is one.
    """
    if second is not None:
        raise ArgumentError(
            "a second text", expected="one text", cause=f"{model}; a BERT reads pairs"
        )
