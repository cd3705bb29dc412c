"""Says in words how much of calls is certain, beside tables and pictures of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class Known(Protocol):
    """A call, or what else says how much of it is certain; `Call` defines the three."""

    @property
    def proof(self) -> str:
        """Whether the numbers are those of the model."""

    @property
    def layout(self) -> str:
        """How the axes are known."""

    @property
    def why(self) -> str:
        """What is not certain."""


def in_words(calls: Iterable[Known]) -> str:
    """What calls are, in one line.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> in_words(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))
    'unproved, layout told'
    """
    every = list(calls)
    proofs, layouts = counted(call.proof for call in every), counted(call.layout for call in every)
    return f"{proofs}{'; layouts: ' if ' ' in proofs + layouts else ', layout '}{layouts}"


def counted(words: Iterable[str]) -> str:
    """One word, or how many calls each is of.

    >>> counted(["told", "usual", "told"]), counted(["told", "told"])
    ('2 told, 1 usual', 'told')
    """
    numbers = Counter(words)
    if len(numbers) == 1:
        return next(iter(numbers))
    return ", ".join(f"{number:,} {word}" for word, number in numbers.items())


def guesses(calls: Iterable[Known]) -> list[str]:
    """A warning for each reason why a layout is a guess, with how many calls it is of."""
    whys = Counter(call.why for call in calls if call.layout == "guessed")
    return [
        f"warning: guessed layout of {number:,} call{'' if number == 1 else 's'}: {why}"
        for why, number in whys.items()
    ]
