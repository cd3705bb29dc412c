"""Checks of token ids, segments and padding masks, the inputs of models, and of their logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError


def check_ids(
    ids: Tensor, rows: int, context_length: int, *, start: int = 0, name: str = "text"
) -> None:
    """Check that `ids` is a batch of token ids (B, N) that fits the token table and the context.

    `start` is the number of cached tokens; `name` appears in the errors.

    Raises:
        ArgumentError: another type or shape, more tokens than the context, or an id out of range.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        raise ArgumentError(
            f"{name} ids {tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__}",
            expected="a tensor of whole numbers (batch, tokens)",
            remedy="torch.tensor([ids]) is a batch of one sequence",
        )
    if start + ids.shape[1] > context_length:
        raise ArgumentError(
            f"a {name} of {start + ids.shape[1]:,} tokens",
            expected=f"at most the model's context of {context_length:,}",
            remedy="pass fewer tokens at once, or train with a longer context",
        )
    check_rows(f"{name} ids", ids, rows, "ids of another tokenizer")


def check_rows(name: str, indices: Tensor, rows: int, cause: str) -> None:
    """Check that indices are in range, on the CPU only: a GPU would have to synchronise.

    Compiled code skips this check, because tensors have no values while they are traced.
    """
    if torch.compiler.is_compiling() or not indices.is_cpu or not indices.numel():
        return
    low, high = (int(end) for end in indices.aminmax())
    if not 0 <= low <= high < rows:
        raise ArgumentError(
            f"{name} from {low} to {high}", expected=f"0 to {rows - 1}", cause=cause
        )


def check_keep(keep: Tensor | None, ids: Tensor, *, start: int = 0, name: str = "keep") -> None:
    """Check that `keep` is boolean (B, start + N): True for real tokens, cached tokens first."""
    expected = (len(ids), start + ids.shape[1])
    if keep is not None and (keep.dtype != torch.bool or keep.shape != expected):
        raise ArgumentError(
            f"{name} {tuple(keep.shape)} of {keep.dtype}",
            expected=f"booleans {expected}",
            cause="a mask for the new tokens only, without the cached tokens" if start else None,
            remedy="pass one entry for each token so far, True for real tokens",
        )


def positions_of(ids: Tensor, start: int, keep: Tensor | None) -> slice | Tensor:
    """Return the positions of new tokens: a slice; with `keep`, (B, N), not counting padding."""
    if keep is None:
        return slice(start, start + ids.shape[1])
    return (keep.cumsum(-1) - 1).clamp(min=0)[:, start:]


def check_logits(logits: Tensor) -> Tensor:
    """Return logits as float32, of which −∞ is allowed; raise a `RunError` for NaN and ∞."""
    logits = logits.float()
    if not bool((logits < math.inf).all()):
        raise RunError(
            "logits that are not finite (NaN or infinite)",
            expected="a number for each token",
            cause="weights that are not finite, or an overflow in float16",
            remedy="use another checkpoint, or run the model in float32",
        )
    return logits
