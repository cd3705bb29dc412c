"""Building and running a layout model, and comparing runs with and without recording."""

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
    return on(device, (model, layout.inputs()))


def ran(model: nn.Module, inputs: tuple) -> Any:
    torch.manual_seed(RUN)
    return model(*inputs)


def record_accepts_axes() -> bool:
    return "axes" in inspect.signature(heedful.record).parameters


def options(layout: Layout) -> dict[str, Any]:
    return {"axes": layout.axes} if layout.axes else {}


def flat(value: Any):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from flat(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)


def changed(layout: Layout, device: str) -> str:
    """Return the name of the first result that recording changes, or an empty string."""
    for grad in (False, True):
        plain = results(layout, device, grad, is_recorded=False)
        try:
            during = results(layout, device, grad, is_recorded=True)
        except HeedfulError:
            continue
        except Exception as error:  # the recorder's: the model alone has just run
            return f"{type(error).__name__}: {error}"
        for name, bits in plain.items():
            if bits != during[name]:
                return name if grad else f"{name}, without gradients"
    return ""


def results(layout: Layout, device: str, grad: bool, is_recorded: bool) -> dict[str, Any]:
    """Run a new model once and return all results of the run as bytes."""
    model, inputs = built(layout, device)
    calls, floats = counted(model), [x for x in flat(inputs) if x.is_floating_point()]
    for tensor in floats:
        tensor.requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        if is_recorded:
            with heedful.record(model, **options(layout)):
                output = ran(model, inputs)
        else:
            output = ran(model, inputs)
    state = random_state(device)
    if grad:
        with suppress(RuntimeError):  # a cache that is written in place has no gradient
            sum(tensor.sum() for tensor in flat(output) if tensor.requires_grad).backward()
    grads = [tensor.grad for tensor in (*model.parameters(), *floats)]
    return {
        "output": bits(output),
        "gradients": [bits(grad_) if grad_ is not None else None for grad_ in grads],
        "buffers": bits(model.state_dict()),
        "inputs": bits(inputs),
        "random state": bits(state),
        "forward passes": dict(calls),
    }


def counted(model: nn.Module) -> Counter:
    """Count the runs of each module, except torch's: hooks would disable their fast paths."""
    calls: Counter = Counter()

    def counting(name: str, forward: Any) -> Any:
        def run(*inputs: Any, **options: Any) -> Any:
            calls[name] += 1
            return forward(*inputs, **options)

        return run

    for name, part in model.named_modules():
        if not type(part).__module__.startswith("torch"):
            part.forward = counting(name, part.forward)
    return calls


def bits(value: Any) -> list[tuple]:
    tensors = (tensor.detach().contiguous().cpu() for tensor in flat(value))
    return [(x.dtype, tuple(x.shape), x.numpy().tobytes()) for x in tensors]
