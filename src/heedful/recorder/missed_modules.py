"""Finds modules that look like attention and ran, but of which no call was recorded."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from typing import Any

from heedful.recording.module_names import Modules, is_in, plain_name

NO_ATTENTION = "Output|Norm|Mask|Embed|Pool|Config|Bias|Dropout"  # as in AttentionOutput
ATTENTION_NAME = re.compile(rf"att(entio)?n(?!.*({NO_ATTENTION}))", re.I)
# Names of children or parameters that project to queries and keys
PROJECTIONS = (
    {"q_proj", "k_proj"}, {"query", "key"}, {"to_q", "to_k"}, {"to_q", "to_kv"}, {"wq", "wk"},
    {"w_q", "w_k"}, {"q", "k"}, {"q", "kv"}, {"q_lin", "k_lin"}, {"linear_q", "linear_k"},
    {"q_net", "kv_net"}, {"query_projection", "key_projection"}, {"in_proj_weight"}, {"qkv"},
    {"to_qkv"}, {"c_attn"}, {"wqkv"}, {"qkv_proj"}, {"query_key_value"}, {"w_qs", "w_ks"},
)  # fmt: skip
NOTHING = (
    "no scaled_dot_product_attention, no nn.MultiheadAttention, no softmax and product after it, "
    "or these only in a method that was called directly, and not as model(...); linear attention, "
    "graph attention and state-space models have no map of queries × keys"
)


def modules_without_calls(
    modules: Modules, ran: Collection[str], reported: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the name of each innermost attention module that ran without a call, and a reason.

    `ran`: the names of all modules that ran. `reported`: the names of those with a recorded call or
    a reported reason. Each also counts for all modules around it and for its direct children.
    """
    named = {plain_name(name): module for module, name in modules.items()}
    reasons = {name: why for name, module in named.items() if (why := _attention_like(module))}
    reported = {name if name in named else "" for name in reported}
    ran = {plain_name(name) for name in ran}
    for name, why in reasons.items():
        is_innermost = not any(other != name and is_in(other, name) for other in reasons)
        has_call = any(is_in(inner, name) for inner in reported)
        has_call = has_call or name.rpartition(".")[0] in reported
        if name in ran and is_innermost and not has_call:
            yield name or type(named[name]).__name__, f"{why}, but no attention was detected in it"


def _attention_like(module: Any) -> str:
    """Return why a module looks like attention; "" if it does not."""
    members = (*module._modules.items(), *module._parameters.items())  # faster than public methods
    names = tuple(name for name, member in members if member is not None)
    is_torchs = type(module).__module__.startswith("torch.nn.modules.")
    return "" if is_torchs and not module._modules else _reason(type(module).__name__, names)


@functools.lru_cache(maxsize=1024)  # a model's blocks are alike
def _reason(class_name: str, members: tuple[str, ...]) -> str:
    lower = {name.lower() for name in members}
    article = "an" if class_name[:1] in "AEIOU" else "a"
    if any(names <= lower for names in PROJECTIONS):
        return f"{article} {class_name} with projections to queries and keys"
    return f"{article} {class_name}" if len(lower) > 1 and ATTENTION_NAME.search(class_name) else ""
