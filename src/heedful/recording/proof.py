"""Says how much of a call is certain: its numbers, and what its axes are of.

Weights times values are the same when texts and heads change places, so that one fact does not
follow from the other: `proof` is of the numbers, `layout` of the axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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

    Args:
        check: the check of its numbers.
        against: what was found to be wrong since.

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
