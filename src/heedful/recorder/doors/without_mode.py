"""Runs an operation inside a dispatch mode bit for bit as it runs without one.

A mode comes after autocast and autograd, and keeps both from operations that an operation calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

KEYS = torch._C.DispatchKey
AUTOCAST = [one for name, one in vars(KEYS).items() if name.startswith("Autocast")]
NESTED = [one for name, one in vars(KEYS).items() if name.startswith("NestedTensor")]
# Kernels that call operations which autocast casts, found by comparing 800 operations with and
# without a mode
CALLS_OTHERS = {
    "_trilinear", "affine_grid_generator", "linalg_pinv", "_sparse_addmm",
    "_transformer_encoder_layer_fwd", "_native_multi_head_attention",
}  # fmt: skip


def has_kernel(function: Any, key: Any) -> bool:
    """Whether torch's dispatcher has a kernel of an operation under a key."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key)
    except RuntimeError:  # operations such as `sym_size` are unknown to it
        return False


def has_own_kernel(function: Any, arguments: tuple) -> bool:
    """Whether torch has a kernel of its own for a composite that is called with nested tensors."""
    is_nested = any(isinstance(one, torch.Tensor) and one.is_nested for one in arguments)
    return is_nested and any(has_kernel(function, key) for key in NESTED)


def run(function: Any, arguments: tuple, keywords: dict[str, Any], name: str) -> Any:
    """The result of an operation, by its name as in `aten`, or with its home if that is another."""
    if name == "linear":
        # it asks whether a view of its weight needs a gradient, and adds up in another order if so
        with _with([KEYS.ADInplaceOrView] if torch.is_inference_mode_enabled() else []):
            return function(*arguments, **keywords)
    if name in CALLS_OTHERS or "::" in name:  # other homes may call anything
        back = [key for key in _autocasting() if not has_kernel(function, key)]
        with _with(back):
            return function(*arguments, **keywords)
    return function(*arguments, **keywords)


def is_autocasting() -> bool:
    """Whether autocast is on where the model called the operation."""
    return bool(_autocasting())


class Composites:
    """Runs operations that consist of others, each of which the mode then sees."""

    def __init__(self) -> None:
        self._is_cast = False  # whether one runs that autocast has cast as a whole

    def run(self, function: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """The result of such an operation, in inference mode, where torch leaves it whole."""
        back, before = _autocasting(), self._is_cast
        self._is_cast = before or any(has_kernel(function, key) for key in back)
        try:
            with _with([] if self._is_cast else back):
                return function._op_dk(KEYS.CompositeImplicitAutograd, *arguments, **keywords)
        finally:
            self._is_cast = before


def _autocasting() -> list[Any]:
    """The keys of autocast that are on where the model called the operation."""
    torch.autocast_increment_nesting()  # below, torch does not say otherwise whether it is on
    if not torch.autocast_decrement_nesting():
        return []
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        excluded = torch._C._dispatch_tls_local_exclude_set()
    return [key for key in AUTOCAST if not excluded.has(key)]


@contextmanager
def _with(back: list[Any]) -> Iterator[None]:
    """Give operations inside these keys of torch's dispatcher back."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in back:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield
