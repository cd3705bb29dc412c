"""Says of which texts a call is by its keys, and by the calls before it, beside its queries."""

from __future__ import annotations

from typing import NamedTuple

from heedful.recorder.following.strides import Parts, common
from heedful.recorder.observed import Followed, Observed
from heedful.recorder.sequences.inputs import Inputs
from heedful.recorder.sequences.text_order import are_texts, followed, followed_to


class Rows(NamedTuple):
    """The axes of queries or keys, or of the tokens that they are made of, by what they are of."""

    texts: Parts | None
    tokens: Parts | None


def tokens_of(seen: Observed, of_query: Rows, of_key: Rows) -> Followed:
    """Where the tokens of a call were followed to, whose axes a door knows."""
    shared = common(len(seen.query), [of_query.texts, of_key.texts])
    texts = tuple([(one.parts[0], one.parts[1]) for one in shared])
    return followed(of_query.tokens or (), of_key.tokens or (), texts)


def follow(seen: Observed, inputs: Inputs, of_query: Rows, of_key: Rows) -> None:
    """Note of which texts of the inputs a call is, whose axes a door knows, and of which tokens."""
    both = [*(of_query.texts or ()), *(of_key.texts or ())]
    sides = (of_query.tokens or (), of_key.tokens or (), both)
    seen.batch = inputs.batch(*([p.axis.given for p in one if p.axis.given] for one in sides))
    follows, moved = followed_to(of_query.texts, seen.batch)
    seen.moved = moved or followed_to(of_key.texts, seen.batch)[1]
    seen.follows = follows and not seen.moved and are_texts(of_key.texts, seen.batch)
    seen.followed = tokens_of(seen, of_query, of_key)


class TextDims:
    """Along which dimension of each input the calls of a pass have its texts."""

    def __init__(self) -> None:
        self._dims: dict[int, int] = {}

    def doubt(self, seen: Observed) -> None:
        """Doubt the texts of a call where one before it had them along another dimension.

        So it is where tokens attend to each other, and then texts do.
        """
        if seen.batch is None or seen.batch.place is None:
            return
        number, dim = seen.batch.place
        other = self._dims.setdefault(number, dim)
        if other != dim and "texts" not in seen.inferred:
            why = f"whether texts are along dimension {dim} of the input, or {other} as before"
            seen.inferred = {**seen.inferred, "texts": why}
