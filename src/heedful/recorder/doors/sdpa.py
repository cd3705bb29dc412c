"""The doors to torch's kernels that are attention as a whole, of `scaled_dot_product_attention`
and of flex attention.

They take (batch, heads, N, d), but a model may have put anything into the first two axes, such as
windows into the batch, so these are named later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from heedful.ops.log_sum_exp import beside
from heedful.ops.masks import Causal
from heedful.recorder.observed import Observed

FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_efficient_attention_forward"  # of tokens × heads, as `CausalBias` calls it
KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    FLASH,
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    EFFICIENT,
)
UNKNOWN = ("cu_seqlens_q", "cu_seqlens_k", "seqlen_k", "window_size")  # of the efficient kernel
DROPPED = "weights were dropped at random"


def observed(name: str, made: tuple, given: dict[str, Any]) -> Observed:
    """The call of one of SDPA's kernels.

    Args:
        name: of the kernel, as in `aten`.
        made: its results, the output first.
        given: its arguments by name.

    Raises:
        TypeError: as `_heads_first` says.
    """
    output, sums, offset = made[0], beside(name, made), _offset(name, given)
    if name == EFFICIENT:
        given, output = _heads_first(given), output.transpose(1, 2)
    query, scale = given["query"], given.get("scale")
    seen = Observed(
        query,
        given["key"],
        given["value"],
        output,
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=given.get("attn_mask", given.get("attn_bias")),
        sums=sums,
        door="scaled_dot_product_attention",
        why=DROPPED if given.get("dropout_p") else "",
    )
    if offset is not None:
        seen.mask, seen.causal = Causal(offset), True
    return seen


def _offset(name: str, given: dict[str, Any]) -> int | None:
    """The key at which a kernel has the first query, where it hides all later ones; else None.

    In flash attention for GPUs the last query stands at the last key: `causal_lower_right` asks it
    for that (torch/nn/attention/bias.py), and `scaled_dot_product_attention` never does otherwise.
    The memory-efficient kernel is told by `custom_mask_type`: 0 hides none, with 1 the first query
    stands at the first key, with 2 the last one at the last.
    """
    hides = given.get("custom_mask_type", int(given.get("is_causal", False)))
    axis = 1 if name == EFFICIENT else 2
    if not hides:
        return None
    is_last = hides == 2 or name == FLASH
    return given["key"].shape[axis] - given["query"].shape[axis] if is_last else 0


def _heads_first(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a kernel of tokens × heads, (B, N, H, d), as others are given them.

    Raises:
        TypeError: texts of unequal lengths that stand in one row, a window, or two masks.
    """
    more = [name for name in UNKNOWN if given.get(name) is not None]
    if given.get("bias") is not None and given["custom_mask_type"]:
        more.append("a bias and a causal mask")
    if more:
        raise TypeError(f"memory-efficient attention with {more[0]}, which is not understood")
    turned = {name: given[name].transpose(1, 2) for name in ("query", "key", "value")}
    return {**given, **turned, "attn_mask": given.get("bias")}


class FlexMask(NamedTuple):
    """The mask of flex attention as its kernel has it: a function of batch, head, query and key."""

    mask_mod: Callable


def flexed(made: tuple, given: dict[str, Any]) -> Observed:
    """The call of flex attention with a mask alone.

    Raises:
        TypeError: it has a score_mod, so its weights are no softmax of scaled and masked scores.
    """
    if given["score_mod"].__name__ != "_identity":
        raise TypeError("flex attention with a score_mod, whose weights are of another form")
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask: Any = FlexMask(given["block_mask"][-1])
    sums: Tensor | None = beside("flex_attention", made)
    return Observed(
        query, key, value, made[0], given["scale"], mask=mask, sums=sums, door="flex_attention"
    )
