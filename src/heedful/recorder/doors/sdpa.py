"""The doors to torch's kernels that are attention as a whole, of `scaled_dot_product_attention`
and of flex attention.

They take (batch, heads, N, d), but a model may have put anything into the first two axes, such as
windows into the batch, so these are named later.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.ops.log_sum_exp import beside
from heedful.ops.masks import Causal
from heedful.recorder.observed_call import Observed

FLASH = "_scaled_dot_product_flash_attention"
KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    FLASH,
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
DROPPED = "weights were dropped at random"


def observed(name: str, made: tuple, given: dict[str, Any]) -> Observed:
    """The call of one of SDPA's kernels, named as in `aten`, by its results and arguments."""
    query, scale = given["query"], given.get("scale")
    seen = Observed(
        query,
        given["key"],
        given["value"],
        made[0],
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=given.get("attn_mask", given.get("attn_bias")),
        sums=beside(name, made),
        door="scaled_dot_product_attention",
        why=DROPPED if given.get("dropout_p") else "",
    )
    if given.get("is_causal"):
        # flash attention for GPUs has the last query at the last key, others the first at the first
        offset = seen.shape[3] - seen.shape[2] if name == FLASH else 0
        seen.mask, seen.causal = Causal(offset), True
    return seen


def flexed(made: tuple, given: dict[str, Any]) -> Observed:
    """The call of flex attention with a mask alone; `TypeError` where it has a score_mod."""
    if given["score_mod"].__name__ != "_identity":
        raise TypeError("flex attention with a score_mod, whose weights are of another form")
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask: Any = given["block_mask"][-1]  # a function of batch, head, query and key
    sums: Tensor | None = beside("flex_attention", made)
    return Observed(
        query, key, value, made[0], given["scale"], mask=mask, sums=sums, door="flex_attention"
    )
