"""Says of which texts a call is by its keys, and by the calls before it, beside its queries."""

from __future__ import annotations

from heedful.recorder.following.strides import Axes
from heedful.recorder.observed import Batch, Observed
from heedful.recorder.sequences.text_order import followed, followed_to


def follow(seen: Observed, batch: Batch, of_query: Axes, of_key: Axes) -> None:
    """Note whether the texts of a call, whose axes a door knows, are in the inputs' order.

    Args:
        seen: the call.
        batch: the texts of the pass.
        of_query, of_key: the axes of its queries and keys, (B, H, N, d), as they were followed.
    """
    follows, moved = followed_to(of_query[0], batch)
    seen.moved = moved or followed_to(of_key[0], batch)[1]
    seen.follows = follows and not seen.moved
    seen.followed = followed(of_query[2] or (), of_key[2] or ())


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
