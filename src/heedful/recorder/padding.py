"""Which tokens of a batch are no padding, as far as the model or its attention was told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from heedful.recorder.capture import Seen

# Under which names models are told: of all the keys there are, or of the side that reads ...
READ = ("attention_mask", "keep", "source_keep", "encoder_attention_mask", "memory_keep")
# ... and of the side that writes, in an encoder–decoder
WRITTEN = ("decoder_attention_mask", "target_keep", "keep")


class Real(NamedTuple):
    """True for real tokens: keys (B, M) and queries (B, N); None where nothing was told.

    In self-attention the queries follow from the keys, at whose positions they stand.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None


def real_tokens(inputs: dict[str, Any], seen: Seen, name: str, modules: Collection[str]) -> Real:
    """What of a call is no padding.

    Args:
        inputs: the keywords that the model was called with.
        seen: the call.
        name: of the module that calls attention.
        modules: the names of all of the model's.
    """
    N, M = seen.query.shape[2], seen.key.shape[2]
    if seen.keep is not None:
        return Real(seen.keep)
    if seen.cross:
        return Real(_told(inputs, READ, M), _told(inputs, WRITTEN, N))
    writes = "decoder" in name.split(".") and any("encoder" in one.split(".") for one in modules)
    return Real(_told(inputs, WRITTEN if writes else READ, M))


def _told(inputs: dict[str, Any], names: tuple[str, ...], length: int) -> Tensor | None:
    for name in names:
        mask = inputs.get(name)
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == length:
            return mask
    return None
