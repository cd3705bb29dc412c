"""The tensors that a call is checked against: its values, and sampled rows of its output.

They are copied during the forward pass. `certificate` later compares weights times values with the
output in these rows, and `proof` names the result.

To store only r numbers per key, values are projected on r fixed random directions; the check also
projects the output. Different products agree in all directions with probability at most 2^-r
(Freivalds 1977, Probabilistic machines can use less running time). Small values on a CPU are copied
and projected later. In shapes, … is (B, H) for B sequences (texts × parts), or (b,) by hand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.ops.indexing import evenly_spaced
from heedful.ops.inputs import no_autocast
from heedful.recording.row_sums import sums_of_kernel
from heedful.recording.tolerance import tolerance_of

SAMPLED = 8  # maximum number of compared rows, including the first and the last
DIRECTIONS = 8  # number of directions on which values are projected
SMALL = 1 << 20  # bytes; values on a CPU up to this size are copied, and projected later
# The operations of a fused layer after attention. Arguments: the joined heads (B, n, H · v), and
# the index of their rows in the input, (B, 1) and (n,). Returns the layer's output (B, n, D)
Epilogue: TypeAlias = Callable[[Tensor, Any], Tensor]


@dataclass
class Evidence:
    """The tensors that a call is checked against.

    why: the reason if nothing can be compared, in which case all tensors are None; else empty.
    dtypes: those of query, keys and output in the model, and the dtype of the stored call.
    tolerance: the largest error that rounding explains, with torch's settings during the call.
    rows: (n,), the indices of the compared queries.
    values: (…, M, r), projected, or (…, M, v) if `is_unprojected` or `needs_projection`.
    outputs: (…, n, v), the output in `rows`; (B, 1, n, D) with an epilogue.
    is_unprojected: whether values stay unprojected: some are not finite, or there is an epilogue.
    needs_projection: whether the values are copies that `projected` must still project.
    sums: (B, H, N), the kernel's log-sum-exps; the call stores them if recomputed ones agree.
    epilogue: the operations of a fused layer after attention, such as its output projection.
    """

    why: str
    dtypes: frozenset[torch.dtype]
    tolerance: float
    rows: Tensor | None = None
    values: Tensor | None = None
    outputs: Tensor | None = None
    is_unprojected: bool = False
    needs_projection: bool = False
    sums: Tensor | None = None
    epilogue: Epilogue | None = None

    def projected(self) -> Evidence:
        """Return the evidence with copied values projected, unless some are not finite."""
        if self.values is None or not self.needs_projection:
            return self
        values = projected(self.values)
        is_unprojected = not are_finite(values)
        tolerance = max(self.tolerance, worst_tolerance(self.dtypes, values.device))
        return replace(
            self, values=self.values if is_unprojected else values, tolerance=tolerance,
            is_unprojected=is_unprojected, needs_projection=False,
        )  # fmt: skip

    def of_heads(self, heads: Sequence[int], count: int) -> Evidence:
        """Return the evidence of some of `count` heads; each head gets a copy of shared values."""
        if self.values is None or self.outputs is None:
            return self
        selected = torch.tensor(heads, device="cpu")
        shared = selected // (count // self.values.shape[1])
        sums = None if self.sums is None else self.sums[:, selected]
        values, outputs = self.values[:, shared], self.outputs[:, selected]
        return replace(self, values=values, outputs=outputs, sums=sums)


def evidence_of(
    value: Tensor | None, output: Tensor | None, dtypes: Iterable[torch.dtype], *, why: str = "",
    epilogue: Epilogue | None = None,
) -> Evidence:  # fmt: skip
    """Collect the evidence for a call from values (…, M, v) and an output (…, N, v).

    `dtypes` are those of query and keys, in the model and as stored. `why` is the reason if nothing
    can be compared. With an epilogue, the output is (B, 1, N, D).

    Raises:
        TypeError: an output of another width than the values, or values of width 0.
    """
    if value is None or output is None or why:
        return Evidence(why, frozenset(dtypes), 0.0)
    dtypes = frozenset(dtype for dtype in (*dtypes, output.dtype) if dtype.is_floating_point)
    rows = sampled_rows(output.shape[-2])
    evidence = functools.partial(
        Evidence, "", dtypes, worst_tolerance(dtypes, output.device), rows,
        outputs=_rows_of(output, rows), epilogue=epilogue,
    )  # fmt: skip
    if epilogue is not None:
        return evidence(values=value.clone(), is_unprojected=True)
    if output.shape[-1] != value.shape[-1] or not value.shape[-1]:
        raise TypeError(f"an output {tuple(output.shape)} of values {tuple(value.shape)}")
    # On a GPU, a test for finite values would wait for the kernels here; the check does it later
    if value.is_cpu and value.nbytes <= SMALL:
        return evidence(values=value.clone(), needs_projection=True)
    values = projected(value)
    if value.is_cpu and not are_finite(values):
        return evidence(values=value.clone(), is_unprojected=True)
    return evidence(values=values)


def with_sums(evidence: Evidence, sums: Tensor, query: Tensor, output: Tensor) -> Evidence:
    """Return the evidence with a kernel's log-sum-exps (B, H, N)."""
    return replace(evidence, sums=sums_of_kernel(sums, query, output))


def are_finite(values: Tensor) -> bool:
    """Return whether all values, and their sum, are finite."""
    return math.isfinite(float(values.sum()))


def worst_tolerance(dtypes: Iterable[torch.dtype], device: torch.device) -> float:
    """Return the largest tolerance of these dtypes, with torch's current settings."""
    return max(tolerance_of(dtype, device) for dtype in dtypes)


def projected(tensor: Tensor) -> Tensor:
    """Project values or outputs (…, n, v) on fixed directions: (…, n, r), float32 or float64."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    directions = _directions(tensor.shape[-1], dtype, tensor.device)
    with no_autocast(tensor):
        # r × n products take a third of the time of n × r ones. The directions are expanded to
        # all heads, because with a single matrix torch would first flatten the tensor
        wide = tensor if tensor.dtype == dtype else tensor.to(dtype)
        return (directions.expand(*tensor.shape[:-2], -1, -1) @ wide.mT).mT


@functools.lru_cache(maxsize=64)
def _directions(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return random but fixed signs ±1, (r, width); unit vectors if the width is at most r."""
    if width <= DIRECTIONS:
        return torch.eye(width, dtype=dtype, device=device)
    generator = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(2, (DIRECTIONS, width), generator=generator, device="cpu")
    return (2 * signs - 1).to(device, dtype)


def _rows_of(output: Tensor, rows: Tensor) -> Tensor:
    """Copy some rows of an output; to copy all, a clone takes half the time of indexing."""
    if len(rows) == output.shape[-2]:
        return output.clone()
    return output[..., _sampled_on(output.device, output.shape[-2]), :]


@functools.lru_cache(maxsize=64)
def _sampled_on(device: torch.device, rows: int) -> Tensor:
    """Return `sampled_rows` on a device, cached so that calls do not wait for a GPU."""
    return sampled_rows(rows).to(device)


@functools.lru_cache(maxsize=64)
def sampled_rows(rows: int) -> Tensor:
    """Return the evenly spaced indices of the compared rows; cached, so do not modify them."""
    with torch.inference_mode(False):  # the cached tensor is used outside inference mode too
        return evenly_spaced(rows, SAMPLED)
