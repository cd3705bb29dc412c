"""How much of a call is certain: its numbers, and what its axes are of; and the same in words.

Weights times values are the same when texts and heads change places, so that one fact does not
follow from the other: `proof` is of the numbers, `layout` of the axes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from heedful.recording.certificate import Check

WORDS = ("proved", "unproved", "refuted")
LAYOUTS = ("told", "verified", "usual", "guessed")


class Proof(NamedTuple):
    """One of WORDS, and what is missing to "proved".

    "proved": weights times values give the output that the model used; "unproved": they cannot be
    compared; "refuted": they were, and do not agree.
    """

    word: str
    why: str


class Layout(NamedTuple):
    """How the axes of a call are known: one of LAYOUTS, and for "guessed" what else they may be.

    "told": by a door that knows its axes, or by `axes=`; "verified": by `recording.verify`;
    "usual": texts, parts, heads, queries and keys in the usual order, with sizes that fit;
    "guessed": another choice was possible.
    """

    word: str
    why: str = ""


def proof_of(check: Check, against: str = "") -> Proof:
    """The proof of a call.

    `against` is what was found to be wrong with it since the check.

    >>> proof_of(Check(1e-7, 2e-5, 8))
    Proof(word='proved', why='')
    """
    is_unknown = math.isnan(check.worst) and not check.rows
    if not (check.worst <= check.tolerance or is_unknown):  # also where it is not a number
        place = f" of {check.where}" if check.where else ""
        off = (
            f"weights times values{place} are {check.worst:.1e} away from the output that the "
            f"model used, where rounding explains {check.tolerance:.0e}"
        )
        return Proof("refuted", check.why or off)
    if against:
        return Proof("refuted", against)
    if not check.rows:
        return Proof("unproved", f"not compared: {check.why}")
    return Proof("proved", "")


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
    """What proves calls, and how their axes are known: `proof: 2 proved; layout: told`."""
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
