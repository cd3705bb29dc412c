"""Runs an operation inside a dispatch mode with exactly the result that it has without the mode.

A mode runs after autocast and autograd. Both stay disabled while the operation runs, so operations
that it calls would skip both. The functions here enable them again where the result needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

KEYS = torch._C.DispatchKey
AUTOCAST = [key for name, key in vars(KEYS).items() if name.startswith("Autocast")]
NESTED = [key for name, key in vars(KEYS).items() if name.startswith("NestedTensor")]
# Kernels that call operations under autocast. Of 800, only these have other results in a mode
CALLS_AUTOCAST = {
    "_trilinear", "affine_grid_generator", "linalg_pinv", "_sparse_addmm",
    "_transformer_encoder_layer_fwd", "_native_multi_head_attention",
}  # fmt: skip


def has_kernel(function: Any, key: Any) -> bool:
    """Whether torch's dispatcher has a kernel for an operation and a dispatch key."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key)
    except RuntimeError:  # for operations such as `sym_size`
        return False


def has_own_kernel(function: Any, arguments: tuple) -> bool:
    """Whether an argument is nested and the composite operation has a kernel for nested tensors."""
    is_nested = any(isinstance(value, torch.Tensor) and value.is_nested for value in arguments)
    return is_nested and any(has_kernel(function, key) for key in NESTED)


def run(function: Any, arguments: tuple, keywords: dict[str, Any], name: str) -> Any:
    """Run an operation; `name` is its name in `aten`, or "namespace::name"."""
    if name == "linear":
        # its order of summation depends on whether a view of its weight requires a gradient
        with _enabled([KEYS.ADInplaceOrView] if torch.is_inference_mode_enabled() else []):
            return function(*arguments, **keywords)
    if name in CALLS_AUTOCAST or "::" in name:  # other packages' operations may call any
        keys = [key for key in _autocasting() if not has_kernel(function, key)]
        with _enabled(keys):
            return function(*arguments, **keywords)
    return function(*arguments, **keywords)


def is_autocasting() -> bool:
    """Whether autocast is on where the model called the operation."""
    return bool(_autocasting())


class Composites:
    """Decomposes composite operations, so that the mode intercepts each of their parts."""

    def __init__(self) -> None:
        self._is_cast = False  # whether autocast has cast the inputs of the running composite

    def run(self, function: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """Decompose an operation. In inference mode, torch itself does not decompose it."""
        keys, was_cast = _autocasting(), self._is_cast
        self._is_cast = was_cast or any(has_kernel(function, key) for key in keys)
        try:
            with _enabled([] if self._is_cast else keys):
                return function._op_dk(KEYS.CompositeImplicitAutograd, *arguments, **keywords)
        finally:
            self._is_cast = was_cast


def _autocasting() -> list[Any]:
    """Return the autocast keys that are enabled where the model called the operation."""
    torch.autocast_increment_nesting()  # inside a mode, only the nesting tells if autocast is on
    if not torch.autocast_decrement_nesting():
        return []
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        excluded = torch._C._dispatch_tls_local_exclude_set()
    return [key for key in AUTOCAST if not excluded.has(key)]


@contextmanager
def _enabled(keys: list[Any]) -> Iterator[None]:
    """Enable these keys of torch's dispatcher again for operations in this context."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield
