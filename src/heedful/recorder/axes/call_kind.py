"""Decides whether a call is self-attention, causal self-attention or cross-attention."""

from __future__ import annotations

import functools
import re

from heedful.recorder.axes.mask_structure import offset_of
from heedful.recorder.observed_call import Observed
from heedful.recording.real_tokens import RealTokens, distinct

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


def _is_causal(real: RealTokens) -> bool:
    """Whether no query of a sequence sees a key after its own."""
    N, M = real.queries.numel(), real.keys.numel()
    offset = offset_of(real.mask, N, M)
    return offset is not None and offset <= max(0, M - N)


def kind_of(seen: Observed, name: str, tokens: list[RealTokens]) -> str:
    """ "self", "causal" or "cross", as far as the call itself can tell."""
    _, _, N, M = seen.shape
    if crosses(seen, name):
        return "cross"
    if all(_is_causal(real) for real in distinct(tokens)) or (seen.causal and N == 1):
        return "causal"
    return "self" if N == M else "cross"
