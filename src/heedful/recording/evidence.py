"""Evidence for the check of a call: its values, projected, and sampled rows of its output.

The check compares weights times values with the output on a few rows. Both are projected on r fixed
directions, so a call stores only r numbers per key, and the forward pass does not wait for the
check. Two different products are equal in r random directions with probability at most 2^-r
(Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977). Small values on a
CPU are copied instead, which is faster.

Leading axes are those of the call: (B, H) for a call with four axes, (b,) for a product by hand.
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

SAMPLED = 8  # number of compared rows, including the first and the last
DIRECTIONS = 8  # number of directions on which values are projected
SMALL = 1 << 20  # bytes; smaller values on a CPU are copied, and projected later
# Operations of a fused layer after attention: maps joined heads (B, n, H · v) and the index of
# their rows in the input, (sequences (B, 1), rows (n,)), to the output (B, n, D)
Finish: TypeAlias = Callable[[Tensor, Any], Tensor]


@dataclass
class Evidence:
    """The tensors that a call is checked against.

    why: the reason why nothing can be compared; then there are no tensors.
    dtypes: those of query and output, and the dtype in which the call is stored.
    tolerance: the largest error that rounding explains, with torch's settings during the call.
    rows: (n,), the indices of the compared queries.
    values: (…, M, r), projected, or (…, M, v) if `is_unprojected` or `needs_projection`.
    outputs: (…, n, v), the output in these rows.
    is_unprojected: whether values stay unprojected, because a fused layer did more after attention,
        or some are not finite. needs_projection: whether they are copies to be projected later.
    sums: (B, H, N), the kernel's log-sum-exps, which the call stores if they agree.
    finish: the operations of a fused layer after attention.
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
    finish: Finish | None = None

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
        """Return the evidence of some of `count` heads, with a copy of the values for each."""
        if self.values is None or self.outputs is None:
            return self
        selected = torch.tensor(heads, device="cpu")
        shared = selected // (count // self.values.shape[1])
        sums = None if self.sums is None else self.sums[:, selected]
        values, outputs = self.values[:, shared], self.outputs[:, selected]
        return replace(self, values=values, outputs=outputs, sums=sums)


def evidence_of(
    value: Tensor | None, output: Tensor | None, dtypes: Iterable[torch.dtype], *, why: str = "",
    finish: Finish | None = None,
) -> Evidence:  # fmt: skip
    """Collect the evidence for a call from values (…, M, v) and an output (…, N, v).

    `dtypes` are those of query and keys, in the model and in the record. `why` is the reason if
    nothing can be compared. With `finish`, the output is (B, 1, N, D).

    Raises:
        TypeError: an output that cannot be weights times these values.
    """
    if value is None or output is None or why:
        return Evidence(why, frozenset(dtypes), 0.0)
    dtypes = frozenset(dtype for dtype in (*dtypes, output.dtype) if dtype.is_floating_point)
    rows = sampled_rows(output.shape[-2])
    evidence = functools.partial(
        Evidence, "", dtypes, worst_tolerance(dtypes, output.device), rows,
        outputs=_rows_of(output, rows), finish=finish,
    )  # fmt: skip
    if finish is not None:
        return evidence(values=value.clone(), is_unprojected=True)
    if output.shape[-1] != value.shape[-1] or not value.shape[-1]:
        raise TypeError(f"an output {tuple(output.shape)} of values {tuple(value.shape)}")
    # On a CPU it costs no wait to test for finite values; on a GPU the check does it later
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
    """Return whether values are finite, and their sum too."""
    return math.isfinite(float(values.sum()))


def worst_tolerance(dtypes: Iterable[torch.dtype], device: torch.device) -> float:
    """Return the largest tolerance of these dtypes, with torch's current settings."""
    return max(tolerance_of(dtype, device) for dtype in dtypes)  # autocast may narrow inside


def projected(tensor: Tensor) -> Tensor:
    """Project values or outputs (…, n, v) on fixed directions: (…, n, r), in float32 at least."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    directions = _directions(tensor.shape[-1], dtype, tensor.device)
    with no_autocast(tensor):
        # Wide products take a third of the time of tall ones. The directions are expanded to all
        # heads, since torch would first flatten the tensor for a single matrix
        wide = tensor if tensor.dtype == dtype else tensor.to(dtype)
        return (directions.expand(*tensor.shape[:-2], -1, -1) @ wide.mT).mT


@functools.lru_cache(maxsize=64)
def _directions(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return fixed directions of +1 and −1, (r, width); unit vectors if there are few features."""
    if width <= DIRECTIONS:
        return torch.eye(width, dtype=dtype, device=device)
    generator = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(2, (DIRECTIONS, width), generator=generator, device="cpu")
    return (2 * signs - 1).to(device, dtype)


def _rows_of(output: Tensor, rows: Tensor) -> Tensor:
    """Copy some rows of an output; a clone of all rows takes half the time of an index."""
    if len(rows) == output.shape[-2]:
        return output.clone()
    return output[..., _sampled_on(output.device, output.shape[-2]), :]


@functools.lru_cache(maxsize=64)
def _sampled_on(device: torch.device, rows: int) -> Tensor:
    """Return `sampled_rows` on a device, cached so that calls do not wait for a GPU."""
    return sampled_rows(rows).to(device)


@functools.lru_cache(maxsize=64)
def sampled_rows(rows: int) -> Tensor:
    """Return the evenly spread indices of the compared rows; cached, so do not change them."""
    with torch.inference_mode(False):  # the cached tensor is used outside inference mode too
        return evenly_spaced(rows, SAMPLED)
