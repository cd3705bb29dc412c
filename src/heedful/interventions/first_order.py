"""First-order estimates of the effects of all heads, by one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.interventions.base import Change
from heedful.interventions.head_call import HeadCall, attend
from heedful.interventions.intervene import intervene


def observed(
    model: nn.Module, names: Sequence[str], run: Callable[[], Any], probes: list[Tensor]
) -> tuple[Any, list[HeadCall]]:
    """Run the model; return its output and the calls of modules, in order.

    If gradients are enabled, a tensor of zeros is added to the output of the heads of each call and
    appended to `probes`: its gradient is that of the output.
    """
    calls: list[HeadCall] = []

    def observe(call: HeadCall) -> Tensor:
        calls.append(call)
        probes.append(torch.zeros_like(call.before, requires_grad=torch.is_grad_enabled()))
        return call.before + probes[-1]

    change = Change("observe", None, None, observe)
    with intervene(model, {name or type(model).__name__: change for name in names}):
        return run(), calls


@torch.no_grad()
def estimates(call: HeadCall, gradient: Tensor, other: HeadCall | Tensor) -> dict[str, Tensor]:
    """Return gradient · (new output − output) of each head of a call, (H,).

    other: the new output; or a call, of which the query and the key are also estimated alone. With
        these, attention is computed again: only what follows it is linear (AtP*).
    """
    if isinstance(other, Tensor):
        new = {"first_order": other}
    else:
        query, key = replace(call, query=other.query), replace(call, key=other.key)
        new = {"first_order": other.before, "query": attend(query), "key": attend(key)}
    return {name: (gradient * (z - call.before)).sum((0, 2, 3)) for name, z in new.items()}
