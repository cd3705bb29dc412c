"""Says in words how much of calls is certain, beside tables and pictures of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol


class Known(Protocol):
    """A call, or the same call of many texts; `Call` says what the three are."""

    @property
    def proof(self) -> str:
        """Whether the numbers are those of the model."""

    @property
    def layout(self) -> str:
        """How the axes are known."""

    @property
    def why(self) -> str:
        """What is not certain."""


def in_words(calls: Collection[Known]) -> str:
    """What proves calls, and how their axes are known, in one line.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> in_words(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))
    'proof: unproved; layout: told'
    """
    proofs, layouts = (call.proof for call in calls), (call.layout for call in calls)
    return f"proof: {counted(proofs)}; layout: {counted(layouts)}"


def counted(words: Iterable[str]) -> str:
    """One word that all have, or how many have each.

    >>> counted(["told", "usual", "told"]), counted(["told", "told"])
    ('2 told, 1 usual', 'told')
    """
    numbers = Counter(words)
    if len(numbers) == 1:
        return next(iter(numbers))
    return ", ".join(f"{number:,} {word}" for word, number in numbers.items())


def guesses(calls: Collection[Known]) -> list[str]:
    """Warnings of layouts that are guessed, each reason once, with how many calls it is of."""
    whys = Counter(call.why for call in calls if call.layout == "guessed")
    return [f"warning: guessed layout{_of(number, calls)}: {why}" for why, number in whys.items()]


def unproved(calls: Collection[Known]) -> list[str]:
    """What is missing to the proof of calls, as `guesses`, of which these are not."""
    whys = Counter((call.proof, call.why) for call in calls
                   if call.layout != "guessed" and call.why)  # fmt: skip
    return [f"{word}{_of(number, calls)}: {why}" for (word, why), number in whys.items()]


def _of(number: int, calls: Collection[Known]) -> str:
    return "" if number == len(calls) else f" ({number:,} of {len(calls):,} calls)"
