"""The doors to torch's fused kernels of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`.

The kernels return neither queries nor keys: the doors compute these projections again. The check
of a call compares the output of the whole kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.recorder.doors import multihead_axes, outside_mode
from heedful.recorder.observed_call import AXES, Observed, TokenMasks


def from_attention(outputs: tuple, inputs: dict[str, Any]) -> Observed:
    """Return the call of the kernel of nn.MultiheadAttention, which also projects the output."""
    query, linear = inputs["query"], _linear(inputs["query"])
    observed = _projected(_padded(query), inputs, inputs["num_head"], linear)
    _mask_padding(observed, query)
    projection = inputs["proj_weight"], inputs["proj_bias"]
    observed.epilogue = lambda context, rows: linear(context, *projection)
    observed.output = _padded(outputs[0])[:, None]
    return observed


def from_layer(output: Tensor, inputs: dict[str, Any]) -> Observed:
    """Return the call of the kernel of nn.TransformerEncoderLayer, which runs the whole layer."""
    source, eps, is_first = _padded(inputs["src"]), inputs["eps"], inputs["norm_first"]
    linear = _linear(source)

    def norm(x: Tensor, number: int) -> Tensor:
        weight, bias = inputs[f"norm_weight_{number}"], inputs[f"norm_bias_{number}"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def tail(context: Tensor, rows: Tensor) -> Tensor:
        x = source[rows] + linear(context, inputs["proj_weight"], inputs["proj_bias"])
        x = x if is_first else norm(x, 1)
        inner = linear(norm(x, 2) if is_first else x, inputs["ffn_weight_1"], inputs["ffn_bias_1"])
        inner = F.gelu(inner) if inputs["use_gelu"] else F.relu(inner)
        x = x + linear(inner, inputs["ffn_weight_2"], inputs["ffn_bias_2"])
        return x if is_first else norm(x, 2)

    x = norm(source, 1) if is_first else source
    observed = _projected(x, inputs, inputs["num_heads"], linear)
    _mask_padding(observed, inputs["src"])
    observed.epilogue, observed.output, observed.part = tail, _padded(output)[:, None], "self_attn"
    return observed


def _linear(like: Tensor) -> Callable[..., Tensor]:
    """Return `F.linear`, with the casts of autocast if the model runs under autocast."""
    if not outside_mode.is_autocasting():
        return F.linear
    dtype = torch.get_autocast_dtype(like.device.type)

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    return linear


def _mask_padding(observed: Observed, source: Tensor) -> None:
    """Mask the padding that was added to the texts of a nested tensor."""
    if not source.is_nested:
        return
    lengths = torch.tensor([len(text) for text in source.unbind()], device="cpu")
    keep = torch.arange(observed.shape[-1], device="cpu") < lengths[:, None]
    observed.mask, observed.real = keep[:, None, None].to(observed.query.device), TokenMasks(keep)


def _padded(tensor: Tensor) -> Tensor:
    return tensor.to_padded_tensor(0.0) if tensor.is_nested else tensor


def _projected(
    x: Tensor, inputs: dict[str, Any], heads: int, linear: Callable[..., Tensor]
) -> Observed:
    """Return the call whose queries, keys and values are projections of tokens x (B, N, D)."""
    qkv = linear(x, inputs["qkv_weight"], inputs["qkv_bias"]).unflatten(-1, (3, heads, -1))
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    mask = inputs.get("mask")
    if mask is not None:
        (B, _, N, _), hidden = query.shape, mask.bool()
        if inputs.get("mask_type") == 1:
            hidden = hidden.view(B, 1, 1, N)
        mask = ~hidden
    scale = query.shape[-1] ** -0.5
    return Observed(
        query, key, value, None, scale, mask=mask, door=multihead_axes.DOOR,
        axes=AXES, cross=False,
    )  # fmt: skip
