"""Checks the arguments of `record` before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from heedful.errors import ArgumentError
from heedful.recorder.axes.axes_notation import check_axes
from heedful.recording.checks import is_whole, whole
from heedful.token_names import Naming, naming_of

KEPT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Options(NamedTuple):
    """The arguments of `record`, checked, as lists and whole numbers; None is all, or no limit."""

    axes: Mapping[str, str] = {}
    layers: list[int] | None = None
    heads: list[int] | None = None
    values: bool = False
    dtype: torch.dtype | None = None
    every: int = 1
    budget: int | None = None
    naming: Naming | None = None

    @classmethod
    def of(
        cls, model: nn.Module, axes: Any, layers: Any, heads: Any, values: bool, dtype: Any,
        every: Any, budget: Any, tokenizer: Any,
    ) -> Options:  # fmt: skip
        """The options for a model; `ArgumentError` for what is none."""
        if dtype is not None and dtype not in KEPT:
            raise ArgumentError(
                f"dtype={dtype!r}", expected="torch.float16, bfloat16, float32 or float64, or None"
            )
        return cls(
            check_axes(axes, model),
            _numbers("layers", layers),
            _numbers("heads", heads),
            values,
            dtype,
            whole("every", every, least=1),
            None if budget is None else whole("budget", _integer(budget), least=0),
            None if tokenizer is None else naming_of(tokenizer),
        )

    def check_layers(self, seen: Mapping[str, int | None]) -> None:
        """Raise `ArgumentError` for a layer that none of the modules that were seen is in."""
        missing = [layer for layer in self.layers or () if layer not in seen.values()]
        if not seen or not missing:
            return
        numbers = sorted({layer for layer in seen.values() if layer is not None})
        expected = f"no layers: names such as {next(iter(seen))} have no number"
        if numbers:
            expected = f"numbers from {numbers[0]} to {numbers[-1]}, as in the names of this model"
        raise ArgumentError(f"no layer {missing[0]} was seen", expected=expected)


def check_heads(heads: list[int], count: int, name: str) -> None:
    """Raise `ArgumentError` for heads that a module does not have."""
    if max(heads) >= count:
        raise ArgumentError(f"head {max(heads)} of {name}", expected=f"heads from 0 to {count - 1}")


def _numbers(name: str, given: Any) -> list[int] | None:
    """The numbers of layers or heads, from 0, each once; None is all."""
    if given is None:
        return None
    is_list = isinstance(given, Iterable) and getattr(given, "ndim", 1) == 1
    numbers = [int(item) for item in given if is_whole(item) and item >= 0] if is_list else []
    if not numbers or len({*numbers}) < len(list(given)):
        raise ArgumentError(
            f"{name}={reprlib.repr(given)}",
            expected=f"whole numbers from 0, each once, such as {name}=[0]",
            remedy=f"leave {name} out for all",
        )
    return numbers


def _integer(number: Any) -> Any:
    """A float such as 2e9 as the integer that it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number
