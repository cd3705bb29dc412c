"""The words for the certainty of a call: `proof` for its numbers, `layout` for its axes.

`evidence` stores tensors of a call, `certificate` compares them with recomputed ones, and this
module names the result: `proof`. A proof says nothing about the layout: weights times values stay
the same if the axes of texts and heads are exchanged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from heedful.recording.certificate import Check

PROOFS = ("proved", "unproved", "refuted")
LAYOUTS = ("told", "verified", "usual", "guessed")


class Proof(NamedTuple):
    """One of PROOFS, and the reason if it is not "proved".

    "proved": weights times values equal the output that the model used, up to rounding;
    "unproved": they cannot be compared; "refuted": they were compared, and found to differ.
    """

    word: str
    why: str


class Layout(NamedTuple):
    """How the axes of a call were determined: one of LAYOUTS, and for "guessed" the alternatives.

    "told": by a door with fixed axes, or by `axes=`; "verified": by `recording.verify`;
    "usual": sizes fit only one of the usual orders (texts, parts, heads, queries, keys);
    "guessed": another order is possible too, as `why` explains.
    """

    word: str
    why: str = ""


def proof_of(check: Check, refutation: str = "") -> Proof:
    """Return the proof of a call; `refutation` is the reason if a later comparison refuted it.

    >>> proof_of(Check(1e-7, 2e-5, 8))
    Proof(word='proved', why='')
    """
    is_unknown = math.isnan(check.worst) and not check.rows
    if not (check.worst <= check.tolerance or is_unknown):  # also if `worst` is NaN
        where = f" of {check.where}" if check.where else ""
        difference = (
            f"weights times values{where} differ by {check.worst:.1e} from the output that the "
            f"model used, and rounding explains at most {check.tolerance:.0e}"
        )
        return Proof("refuted", check.why or difference)
    if refutation:
        return Proof("refuted", refutation)
    if not check.rows:
        return Proof("unproved", f"not compared: {check.why}")
    return Proof("proved", "")


class Provable(Protocol):
    """The certainty of a call, or of the same call over many texts; fields as in `Call`."""

    @property
    def proof(self) -> str:
        """The certainty of the numbers: one of PROOFS."""

    @property
    def layout(self) -> str:
        """How the axes were determined: one of LAYOUTS."""

    @property
    def why(self) -> str:
        """What is uncertain, and why."""


def proof_summary(calls: Collection[Provable]) -> str:
    """Return a line such as `proof: 2 proved; layout: told`."""
    proofs, layouts = (call.proof for call in calls), (call.layout for call in calls)
    return f"proof: {counted(proofs)}; layout: {counted(layouts)}"


def counted(words: Iterable[str]) -> str:
    """Return the word if all are equal, else each word with the number of its occurrences.

    >>> counted(["told", "usual", "told"]), counted(["told", "told"])
    ('2 told, 1 usual', 'told')
    """
    numbers = Counter(words)
    if len(numbers) == 1:
        return next(iter(numbers))
    return ", ".join(f"{number:,} {word}" for word, number in numbers.items())


def layout_warnings(calls: Collection[Provable]) -> list[str]:
    """Return a warning for each reason of a guessed layout, with the number of calls."""
    whys = Counter(call.why for call in calls if call.layout == "guessed")
    return [f"warning: guessed layout{_part(number, calls)}: {why}" for why, number in whys.items()]


def proof_gaps(calls: Collection[Provable]) -> list[str]:
    """Return each reason why calls are not proved, except those in `layout_warnings`."""
    whys = Counter((call.proof, call.why) for call in calls
                   if call.layout != "guessed" and call.why)  # fmt: skip
    return [f"{word}{_part(number, calls)}: {why}" for (word, why), number in whys.items()]


def _part(number: int, calls: Collection[Provable]) -> str:
    return "" if number == len(calls) else f" ({number:,} of {len(calls):,} calls)"
