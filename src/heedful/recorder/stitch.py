"""A generation as one picture: every token × all keys up to it, for each layer.

A model that generates calls attention once for the prompt and once for each new token, with a
cache that holds the keys so far. The keys of all passes are put in their places again, whether the
cache grew with them, was made at full length beforehand (static) or forgot old ones (sliding).
Only a bias of positions (T5) is put together as a whole map.
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
    """One call for each layer, in the order of the layers.

    Cross-attention is left out, and what sees both ways, as an encoder's layers do.

    Raises:
        RunError: nothing that was generated, or passes that do not follow each other.
    """
    own = [capture for capture in captures if capture.kind != "cross"]
    ordered = sorted(own, key=lambda capture: (capture.layer, capture.forward))
    layers = [list(passes) for _, passes in groupby(ordered, key=lambda capture: capture.layer)]
    found = [_layer(passes, sequence) for passes in layers if not any(map(_sees_both_ways, passes))]
    if not found:
        raise RunError(
            "no pass of causal self-attention was recorded",
            expected="a generation inside the `with` block",
        )
    return found


def _sees_both_ways(capture: Capture) -> bool:
    return capture.kind == "self" and capture.query.shape[2] > 1


def _layer(passes: list[Capture], sequence: int) -> Call:
    causes = [capture.causes(sequence) for capture in passes]
    total = sum(one.query.shape[1] for one in causes)
    first = causes[0]
    key = first.key.new_zeros(first.key.shape[0], total, first.key.shape[2])
    bias = None if first.bias is None else first.bias.new_zeros(first.query.shape[0], total, total)
    mask: Mask = _structure(first.mask)
    done = 0
    for capture, one in zip(passes, causes, strict=True):
        length, held = one.query.shape[1], one.key.shape[1]
        before, done = done, done + length
        start = max(0, done - held)  # above 0 where a cache forgets: it holds the last keys
        new = one.key[:, : done - start]  # one made at full length is empty after them
        begins_anew = before > 0 and held <= length
        same = torch.equal(new[:, : max(0, before - start)], key[:, start:before])
        if begins_anew or not same or _last_seen(one) != done - start:
            raise _broken(capture, sequence)
        key[:, start:done] = new
        if bias is not None and one.bias is not None:
            bias[:, before:done, start:done] = one.bias[..., : done - start]
        if start:
            mask = Causal() & Window(held)
    query = torch.cat([one.query for one in causes], dim=1)
    worst = max(passes, key=lambda capture: _worst(capture.check))
    return Call(
        passes[0].name,
        passes[0].layer,
        passes[0].forward,
        "causal",
        Causes(query, key, first.scale, mask, bias, first.cap, first.sinks),
        worst.check,
        door=passes[0].door,
    )


def _last_seen(one: Causes) -> int:
    """How many keys there are up to the last one that the last query may see."""
    _, N, M = one.shape
    if one.mask is None:
        return M
    row = one.mask.crop(one.shape, slice(N - 1, N)).flatten(0, -2).any(dim=0)
    return int(row.nonzero().max()) + 1 if bool(row.any()) else 0


def _broken(capture: Capture, sequence: int) -> RunError:
    return RunError(
        f"pass {capture.forward} of {capture.name} does not go on from the one before it, in "
        f"sequence {sequence}",
        expected="all passes of one generation, each with the keys of those before",
        cause="two generations in one recording, every n-th pass only, or beam search, which goes "
        "on from another beam",
        remedy="record one generation, greedy or sampled, in a `with` block of its own",
    )


def _structure(mask: Mask | None) -> Mask:
    """Causal, and of a window where the prompt's own mask was; offsets are those of the whole."""
    parts = mask.parts if isinstance(mask, Combined) else (mask,)
    windows = [part.size for part in parts if isinstance(part, Window)]
    return Causal() & Window(min(windows)) if windows else Causal()


def _worst(check: Check) -> float:
    return math.inf if math.isnan(check.worst) else check.worst
