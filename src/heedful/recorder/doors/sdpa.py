"""The doors to the fused kernels of `scaled_dot_product_attention` and of flex attention.

The kernels take (batch, heads, N, d), but the batch of a model may also hold windows, for example.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.ops.log_sum_exp import find_log_sum_exp
from heedful.ops.masks import Causal
from heedful.recorder.observed_call import Observed

FLASH = "_scaled_dot_product_flash_attention"
KERNELS = (
    f"{FLASH}_for_cpu", FLASH, "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
DROPPED = "weights were dropped at random"


def from_kernel(name: str, outputs: tuple, inputs: dict[str, Any]) -> Observed:
    """Return the call of the SDPA kernel `aten::<name>` with these outputs and arguments."""
    query, scale = inputs["query"], inputs.get("scale")
    observed = Observed(
        query, inputs["key"], inputs["value"], outputs[0],
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=inputs.get("attn_mask", inputs.get("attn_bias")), sums=find_log_sum_exp(name, outputs),
        door="scaled_dot_product_attention", why=DROPPED if inputs.get("dropout_p") else "",
    )  # fmt: skip
    if inputs.get("is_causal"):
        # flash attention on GPUs aligns the mask to the bottom right, other kernels to the top left
        offset = observed.shape[3] - observed.shape[2] if name == FLASH else 0
        observed.mask, observed.causal = Causal(offset), True
    return observed


def from_flex_attention(outputs: tuple, inputs: dict[str, Any]) -> Observed:
    """Return a call of flex attention; raise `TypeError` if it has a score_mod."""
    if inputs["score_mod"].__name__ != "_identity":
        raise TypeError("flex attention with a score_mod, which may change the scores in any way")
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    mask: Any = inputs["block_mask"][-1]  # a function of batch, head, query and key
    sums: Tensor | None = find_log_sum_exp("flex_attention", outputs)
    return Observed(
        query, key, value, outputs[0], inputs["scale"], mask=mask, sums=sums, door="flex_attention"
    )
