"""The kind of a call: self-attention, causal self-attention or cross-attention."""

from __future__ import annotations

import functools
import re

from heedful.recorder.axes.mask_structure import offset_of
from heedful.recorder.observed_call import Observed
from heedful.recording.unpadded import RealTokens, distinct

# Parts of the names of modules that attend to another sequence
CROSS_NAMES = ("cross", "encoder_attn", "encdec", "enc_dec", "src_attn")
# Names with "cross" that do not mean cross-attention
NOT_CROSS = re.compile("cross_encoder|Across|(?<![A-Za-z])across")


def crosses(call: Observed, name: str) -> bool:
    """Whether the keys are of another sequence: as the door reports, else by the module's name."""
    return _is_cross_name(name) if call.cross is None else call.cross


@functools.lru_cache(maxsize=1024)  # names repeat in each pass
def _is_cross_name(name: str) -> bool:
    end = NOT_CROSS.sub("", ".".join(name.split(".")[-2:])).lower()
    return any(part in end for part in CROSS_NAMES)


def _is_causal(real: RealTokens) -> bool:
    """Whether no query may attend to a later key."""
    N, M = real.queries.numel(), real.keys.numel()
    offset = offset_of(real.mask, N, M)
    return offset is not None and offset <= max(0, M - N)


def kind_of(call: Observed, name: str, tokens: list[RealTokens]) -> str:
    """Return "self", "causal" or "cross", judged by this call alone."""
    _, _, N, M = call.shape
    if crosses(call, name):
        return "cross"
    if all(_is_causal(real) for real in distinct(tokens)) or (call.causal and N == 1):
        return "causal"
    return "self" if N == M else "cross"
