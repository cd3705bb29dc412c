"""A fresh model of a layout, a run of it, and what recording changes of that."""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from layout_truth import RUN, Layout, peaked
from placed import on, random_state
from torch import Tensor, nn

import heedful
from heedful.errors import HeedfulError

SEED = 5


def built(layout: Layout, device: str) -> tuple[nn.Module, tuple]:
    torch.manual_seed(SEED)
    model = peaked(layout.make()).train(layout.training)
    return on(device, (model, layout.given()))


def ran(model: nn.Module, given: tuple) -> Any:
    torch.manual_seed(RUN)
    return model(*given)


def can_be_told() -> bool:
    """Whether the recorder takes `axes`."""
    return "axes" in inspect.signature(heedful.record).parameters


def options(layout: Layout) -> dict[str, Any]:
    return {"axes": layout.axes} if layout.axes else {}


def flat(value: Any):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from flat(list(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from flat(one)


def changed(layout: Layout, device: str) -> str:
    """What recording changes of a run, with gradients or without."""
    for grad in (False, True):
        plain = left(layout, device, grad, is_recorded=False)
        try:
            during = left(layout, device, grad, is_recorded=True)
        except HeedfulError:
            continue
        except Exception as error:  # of the recorder: the model alone has just run
            return f"{type(error).__name__}: {error}"
        for what, bits in plain.items():
            if bits != during[what]:
                return what if grad else f"{what}, without gradients"
    return ""


def left(layout: Layout, device: str, grad: bool, is_recorded: bool) -> dict[str, Any]:
    """All that a run of a fresh model leaves, in bits."""
    model, given = built(layout, device)
    calls, floats = counted(model), [one for one in flat(given) if one.is_floating_point()]
    for one in floats:
        one.requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        if is_recorded:
            with heedful.record(model, **options(layout)):
                output = ran(model, given)
        else:
            output = ran(model, given)
    state = random_state(device)
    if grad:
        with suppress(RuntimeError):  # a cache that is written into has none
            sum(one.sum() for one in flat(output) if one.requires_grad).backward()
    grads = [one.grad for one in (*model.parameters(), *floats)]
    return {
        "output": bits(output),
        "gradients": [bits(one) if one is not None else None for one in grads],
        "buffers": bits(model.state_dict()),
        "inputs": bits(given),
        "random state": bits(state),
        "forward passes": dict(calls),
    }


def counted(model: nn.Module) -> Counter:
    """How often each module of this benchmark runs; torch's have fast paths that hooks close."""
    calls: Counter = Counter()

    def counting(name: str, forward: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return forward(*given, **named)

        return run

    for name, part in model.named_modules():
        if not type(part).__module__.startswith("torch"):
            part.forward = counting(name, part.forward)
    return calls


def bits(value: Any) -> list[tuple]:
    found = (one.detach().contiguous().cpu() for one in flat(value))
    return [(one.dtype, tuple(one.shape), one.numpy().tobytes()) for one in found]
