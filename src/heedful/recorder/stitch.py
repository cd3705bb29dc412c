"""A generation as one picture: every token × all keys up to it, for each layer.

A model that generates calls attention once for the prompt and once for each new token, with a
cache that holds the keys so far. The keys of all passes are put in their places again, whether the
cache grew with them, was made at full length beforehand (static) or forgot old ones (sliding).
"""

from __future__ import annotations

import math
from itertools import groupby

import torch

from heedful.errors import RunError
from heedful.ops.causes import Causes
from heedful.ops.masks import Causal, Combined, Mask, Window
from heedful.recorder.call import Call
from heedful.recorder.capture import Capture, Check


def stitched(captures: list[Capture], sequence: int) -> list[Call]:
    """One call for each layer, in the order of the layers; cross-attention is left out.

    Raises:
        RunError: nothing that was generated, or passes that do not follow each other.
    """
    own = [capture for capture in captures if capture.kind != "cross"]
    if not own:
        raise RunError(
            "no pass of self-attention was recorded",
            expected="a generation inside the `with` block",
        )
    ordered = sorted(own, key=lambda capture: (capture.layer, capture.forward))
    return [
        _layer(list(passes), sequence)
        for _, passes in groupby(ordered, key=lambda capture: capture.layer)
    ]


def _layer(passes: list[Capture], sequence: int) -> Call:
    causes = [capture.causes(sequence) for capture in passes]
    lengths = [one.query.shape[1] for one in causes]
    total = sum(lengths)
    first = causes[0]
    key = first.key.new_zeros(first.key.shape[0], total, first.key.shape[2])
    mask: Mask = _structure(first.mask)
    done = 0
    for one, length in zip(causes, lengths, strict=True):
        done += length
        held = one.key.shape[1]
        if held >= done:  # a cache that grew, or one made at full length, whose rest is empty
            key[:, :done] = one.key[:, :done]
        else:  # a cache that forgets: it holds the last keys
            key[:, done - held : done] = one.key
            mask = Causal() & Window(held)
    query = torch.cat([one.query for one in causes], dim=1)
    worst = max(passes, key=lambda capture: _worst(capture.check))
    return Call(
        passes[0].name,
        passes[0].layer,
        passes[0].forward,
        "causal",
        Causes(query, key, first.scale, mask, None, first.cap, first.sinks),
        worst.check,
        door=passes[0].door,
    )


def _structure(mask: Mask | None) -> Mask:
    """Causal, and of a window where the prompt's own mask was; offsets are those of the whole."""
    parts = mask.parts if isinstance(mask, Combined) else (mask,)
    windows = [part.size for part in parts if isinstance(part, Window)]
    return Causal() & Window(min(windows)) if windows else Causal()


def _worst(check: Check) -> float:
    return math.inf if math.isnan(check.worst) else check.worst
