"""Decides whether a call is self-attention, causal self-attention or cross-attention."""

from __future__ import annotations

import functools
import re

from heedful.recorder.observed import Observed
from heedful.recorder.owners.mask_structure import offset_of
from heedful.recorder.owners.padding import Layout, distinct

# Parts of the names of modules that attend to another sequence
CROSSING = ("cross", "encoder_attn", "encdec", "enc_dec", "src_attn")
# "cross" in these says nothing of that, while `VanillaCrossAttention` is one
OTHERS = re.compile("cross_encoder|Across|(?<![A-Za-z])across")


def crosses(seen: Observed, name: str) -> bool:
    """Whether keys are of another sequence than queries: as a door says, or the module's name."""
    return _crosses_by(name) if seen.cross is None else seen.cross


@functools.lru_cache(maxsize=1024)  # each pass has the same names
def _crosses_by(name: str) -> bool:
    end = OTHERS.sub("", ".".join(name.split(".")[-2:])).lower()
    return any(part in end for part in CROSSING)


def _is_causal(seen: Observed, layout: Layout) -> bool:
    """Whether no query of a sequence sees a key after its own.

    A window on both sides goes beyond that. With keys of another input, the last query stands at
    the last key: else its mask looks back in another text, as from words to images before them.
    """
    N, M = layout.queries.numel(), layout.keys.numel()
    offset = offset_of(layout.mask, N, M)
    if offset is None:
        return False
    return offset == M - N if seen.is_of_two else offset <= max(0, M - N)


def kind_of(seen: Observed, name: str, layouts: list[Layout]) -> str:
    """ "self", "causal" or "cross", as far as the call itself can tell."""
    _, _, N, M = seen.shape
    if crosses(seen, name):
        return "cross"
    if any(_is_causal(seen, layout) for layout in distinct(layouts)) or (seen.causal and N == 1):
        return "causal"
    return "self" if N == M else "cross"
