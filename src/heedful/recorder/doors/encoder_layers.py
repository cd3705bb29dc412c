"""The doors to torch's kernels for `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`.

These project and go on after attention, so projections are computed again here, and the output is
compared at the kernel's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.recorder.doors import multihead_attention, without_mode
from heedful.recorder.observed_call import AXES, Observed, Real


def native(made: tuple, given: dict[str, Any]) -> Observed:
    """The call of nn.MultiheadAttention's own kernel, whose output is projected already."""
    query, linear = given["query"], _linear_now(given["query"])
    seen = _projected(_padded(query), given, given["num_head"], linear)
    _leave_out_padding(seen, query)
    seen.finish = lambda context, rows: linear(context, given["proj_weight"], given["proj_bias"])
    seen.output = _padded(made[0])[:, None]
    return seen


def layer(made: Tensor, given: dict[str, Any]) -> Observed:
    """The call of nn.TransformerEncoderLayer's own kernel, which computes the whole layer."""
    source, eps, is_first = _padded(given["src"]), given["eps"], given["norm_first"]
    linear = _linear_now(source)

    def norm(x: Tensor, number: int) -> Tensor:
        weight, bias = given[f"norm_weight_{number}"], given[f"norm_bias_{number}"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def finish(context: Tensor, rows: Tensor) -> Tensor:
        x = source[rows] + linear(context, given["proj_weight"], given["proj_bias"])
        x = x if is_first else norm(x, 1)
        inner = linear(norm(x, 2) if is_first else x, given["ffn_weight_1"], given["ffn_bias_1"])
        inner = F.gelu(inner) if given["use_gelu"] else F.relu(inner)
        x = x + linear(inner, given["ffn_weight_2"], given["ffn_bias_2"])
        return x if is_first else norm(x, 2)

    seen = _projected(norm(source, 1) if is_first else source, given, given["num_heads"], linear)
    _leave_out_padding(seen, given["src"])
    seen.finish, seen.output, seen.part = finish, _padded(made)[:, None], "self_attn"
    return seen


def _linear_now(like: Tensor) -> Callable[..., Tensor]:
    """A linear layer as these kernels call it now, also later: cast where autocast is on."""
    if not without_mode.is_autocasting():
        return F.linear
    kind = torch.get_autocast_dtype(like.device.type)

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x.to(kind), weight.to(kind), None if bias is None else bias.to(kind))

    return linear


def _leave_out_padding(seen: Observed, source: Tensor) -> None:
    """Mask the padding of texts of unequal lengths that came in a nested tensor."""
    if not source.is_nested:
        return
    lengths = torch.tensor([len(one) for one in source.unbind()], device="cpu")
    keep = torch.arange(seen.shape[-1], device="cpu") < lengths[:, None]
    seen.mask, seen.real = keep[:, None, None].to(seen.query.device), Real(keep)


def _padded(tensor: Tensor) -> Tensor:
    return tensor.to_padded_tensor(0.0) if tensor.is_nested else tensor


def _projected(
    x: Tensor, given: dict[str, Any], heads: int, linear: Callable[..., Tensor]
) -> Observed:
    """The call of tokens (B, N, D), with queries, keys and values as these kernels project them."""
    made = linear(x, given["qkv_weight"], given["qkv_bias"]).unflatten(-1, (3, heads, -1))
    query, key, value = (one.transpose(1, 2) for one in made.unbind(2))
    mask = given.get("mask")
    if mask is not None:
        (B, _, N, _), hidden = query.shape, mask.bool()
        if given.get("mask_type") == 1:
            hidden = hidden.view(B, 1, 1, N)
        mask = ~hidden
    scale = query.shape[-1] ** -0.5
    return Observed(
        query, key, value, None, scale, mask=mask, door=multihead_attention.DOOR,
        axes=AXES, cross=False,
    )  # fmt: skip
