"""Says how much of a call is certain: its numbers, and whose they are.

Numbers: weights from what is kept, times values, agree with the output that the model used.
Owners: which axis is of texts, which of heads, and what is padding. Each is told by a door that
knows it or by the user, followed from operation to operation, or verified by running each text of a
batch alone; what is none of these is inferred. Weights times values are the same when texts and
heads change places, so that one fact does not follow from the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from heedful.recording.certificate import Check

WORDS = ("proved", "assumed", "unproved", "refuted")


class Proof(NamedTuple):
    """One of WORDS, and in words what is missing to "proved".

    "proved": numbers and owners; "assumed": the numbers, and some owner is inferred; "unproved":
    the numbers cannot be compared; "refuted": they were, and do not agree.
    """

    word: str
    why: str


def proof_of(check: Check, inferred: Mapping[str, str], against: str = "") -> Proof:
    """The proof of a call.

    Args:
        check: the check of its numbers.
        inferred: what of its owners is a guess, and how it was made.
        against: what was found to be wrong when each text ran alone.

    >>> proof_of(Check(1e-7, 2e-5, 8), {})
    Proof(word='proved', why='')
    >>> proof_of(Check(1e-7, 2e-5, 8), {"texts": "which text comes first"})
    Proof(word='assumed', why='inferred: which text comes first')
    """
    is_unknown = math.isnan(check.worst) and not check.rows
    is_off = not (check.worst <= check.tolerance or is_unknown)  # also where a number is none
    if is_off and check.why:
        return Proof("refuted", check.why)
    if is_off:
        place = f" of {check.where}" if check.where else ""
        return Proof(
            "refuted",
            f"weights times values{place} are {check.worst:.1e} away from the output that the "
            f"model used, where rounding explains {check.tolerance:.0e}",
        )
    if against:
        return Proof("refuted", against)
    guesses = [f"inferred: {how}" for how in inferred.values()]
    if not check.rows:
        return Proof("unproved", "; ".join([f"not compared: {check.why}", *guesses]))
    return Proof("assumed" if guesses else "proved", "; ".join(guesses))
