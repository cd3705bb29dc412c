"""The arguments of `record`, checked before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from heedful.errors import ArgumentError
from heedful.recorder.axes.axes_notation import check_axes
from heedful.recording.checks import integer, is_integer
from heedful.token_names import Labeller, token_labeller

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Options(NamedTuple):
    """The checked arguments of `record`; None means the default, such as all layers."""

    axes: Mapping[str, str] = {}
    layers: list[int] | None = None
    heads: list[int] | None = None
    values: bool = False
    dtype: torch.dtype | None = None
    every: int = 1
    budget: int | None = None
    naming: Labeller | None = None

    @classmethod
    def check(
        cls, model: nn.Module, axes: Any, layers: Any, heads: Any, values: bool, dtype: Any,
        every: Any, budget: Any, tokenizer: Any,
    ) -> Options:  # fmt: skip
        """Return the checked options; raise `ArgumentError` for an invalid argument."""
        if dtype is not None and dtype not in DTYPES:
            raise ArgumentError(
                f"dtype={dtype!r}", expected="torch.float16, bfloat16, float32 or float64, or None"
            )
        return cls(
            check_axes(axes, model), _numbers("layers", layers), _numbers("heads", heads),
            values, dtype, integer("every", every, minimum=1),
            None if budget is None else integer("budget", _integer(budget), minimum=0),
            None if tokenizer is None else token_labeller(tokenizer),
        )  # fmt: skip

    def check_layers(self, recorded: Mapping[str, int | None]) -> None:
        """Raise `ArgumentError` if some layers had calls, but a requested layer had none."""
        missing = [layer for layer in self.layers or () if layer not in recorded.values()]
        if not recorded or not missing:
            return
        numbers = sorted({layer for layer in recorded.values() if layer is not None})
        expected = f"no layers=, as names such as {next(iter(recorded))} have no number"
        if numbers:
            expected = f"numbers from {numbers[0]} to {numbers[-1]}, as in the names of this model"
        raise ArgumentError(f"no layer {missing[0]} was recorded", expected=expected)


def check_heads(heads: list[int], count: int, name: str) -> None:
    """Raise `ArgumentError` if the module `name` with `count` heads does not have these heads."""
    if max(heads) >= count:
        raise ArgumentError(f"head {max(heads)} of {name}", expected=f"heads from 0 to {count - 1}")


def _numbers(name: str, values: Any) -> list[int] | None:
    """Return valid numbers of layers or heads as a list, or None; else raise `ArgumentError`."""
    if values is None:
        return None
    is_list = isinstance(values, Iterable) and getattr(values, "ndim", 1) == 1
    numbers = [int(item) for item in values if is_integer(item) and item >= 0] if is_list else []
    if not numbers or len({*numbers}) < len(list(values)):
        raise ArgumentError(
            f"{name}={reprlib.repr(values)}",
            expected=f"whole numbers from 0, each once, such as {name}=[0]",
            remedy=f"omit {name} to record all",
        )
    return numbers


def _integer(number: Any) -> Any:
    """Convert a float with a whole value, such as 2e9, to an integer."""
    return int(number) if isinstance(number, float) and number.is_integer() else number
