"""A model's parameters by name: compared, or put in place of ones never drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.errors import RunError


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, each once: a shared one (tied embeddings) under its first name."""
    return dict(model.named_parameters())


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_fit(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    source: Path,
    cause: str = "files of two different runs in one directory",
) -> None:
    """Raise one `RunError` that lists every missing, unexpected and misshapen tensor."""
    wrong = [f"missing {name}" for name in wanted if name not in found]
    wrong += [f"unexpected {name}" for name in found if name not in wanted]
    wrong += [
        f"{name} is {found[name]}, not {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        raise RunError(f"weights in {source} do not fit: {', '.join(wrong)}", cause=cause)


def without_parameters(make: Callable[[], nn.Module]) -> nn.Module:
    """A model whose parameters have shapes and no memory; `assign` gives them theirs.

    Nothing is drawn. Buffers are real where the model makes them on the CPU, as ours do.
    """
    with torch.device("meta"), _NothingDrawn():
        return make()


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the drawing of initial weights; on the meta device it brings torch's compiler."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def assign(model: nn.Module, read: Callable[[str], Tensor]) -> nn.Module:
    """Give a model from `without_parameters` its parameters, each read once by its name."""
    new = {id(old): nn.Parameter(read(name)) for name, old in model.named_parameters()}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, new[id(old)])
    return model
