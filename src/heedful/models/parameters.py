"""A model's parameters: names, shape checks, and models created without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.errors import RunError

LISTED = 3  # tensors of each kind that an error lists


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name; shared ones (tied embeddings) only under their first name."""
    return dict(model.named_parameters())


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_fit(
    expected: Mapping[str, tuple[int, ...]],
    loaded: Mapping[str, tuple[int, ...]],
    source: Path,
    cause: str = "files of two different runs in one directory",
) -> None:
    """Raise one `RunError` that lists missing, unexpected and misshapen tensors."""
    missing = [f"missing {name}" for name in expected if name not in loaded]
    unexpected = [f"unexpected {name}" for name in loaded if name not in expected]
    misshapen = [
        f"{name} is {loaded[name]}, not {shape}"
        for name, shape in expected.items()
        if name in loaded and loaded[name] != shape
    ]
    wrong = []
    for texts in (missing, unexpected, misshapen):
        more = len(texts) - LISTED
        wrong += [*texts[:LISTED], f"{more} more of this kind"] if more > 0 else texts
    if wrong:
        if any(name.startswith("_orig_mod.") for name in loaded):
            cause = "weights of a compiled model; save those of the model before torch.compile"
        raise RunError(f"weights in {source} do not fit: {', '.join(wrong)}", cause=cause)


def on_meta_device(create: Callable[[], nn.Module]) -> nn.Module:
    """Create a model with parameters on the meta device; `assign_parameters` sets their values.

    Initialisation is skipped; buffers that the model creates on the CPU get their values.
    """
    with torch.device("meta"), _SkipInitialisation():
        return create()


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation, which would import torch's compiler on the meta device."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def assign_parameters(model: nn.Module, read: Callable[[str], Tensor]) -> nn.Module:
    """Set the parameters of a model from `on_meta_device`; `read` returns the tensor of a name."""
    new = {id(old): nn.Parameter(read(name)) for name, old in model.named_parameters()}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, new[id(old)])
    return model
