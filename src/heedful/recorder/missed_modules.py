"""Finds modules that hold attention, ran, and of which no call was seen."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from typing import Any

from heedful.recording.module_names import Modules, is_in, plain_name

NAMED = re.compile(r"att(entio)?n(?!.*(Output|Norm|Mask|Embed|Pool|Config|Bias|Dropout))", re.I)
# Names of children or parameters that make queries and keys
PROJECTIONS = (
    {"q_proj", "k_proj"}, {"query", "key"}, {"to_q", "to_k"}, {"to_q", "to_kv"}, {"wq", "wk"},
    {"w_q", "w_k"}, {"q", "k"}, {"q", "kv"}, {"q_lin", "k_lin"}, {"linear_q", "linear_k"},
    {"q_net", "kv_net"}, {"query_projection", "key_projection"}, {"in_proj_weight"}, {"qkv"},
    {"to_qkv"}, {"c_attn"}, {"wqkv"}, {"qkv_proj"}, {"query_key_value"}, {"w_qs", "w_ks"},
)  # fmt: skip
NOTHING = (
    "no scaled_dot_product_attention, no nn.MultiheadAttention, no softmax and product after it, "
    "or only in a method that was called directly, and not as model(...); linear and graph "
    "attention and state spaces have no map of queries × keys"
)


def silent(
    modules: Modules, ran: Collection[str], told: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Modules that hold attention and ran, but had no call: each with the reason.

    `ran` and `told` are the names of modules that ran, and that had a call or were missed. A call
    is of a module and of those around it; one whose parent has a call may have made a part of that.
    """
    named = {plain_name(name): module for module, name in modules.items()}
    holding = {name: why for name, module in named.items() if (why := _why(module))}
    known = {name if name in named else "" for name in told}
    ran = {plain_name(name) for name in ran}
    for name, why in holding.items():
        is_innermost = not any(other != name and is_in(other, name) for other in holding)
        has_call = any(is_in(one, name) for one in known) or name.rpartition(".")[0] in known
        if name in ran and is_innermost and not has_call:
            yield name or type(named[name]).__name__, f"{why}, and no attention was seen in it"


def _why(part: Any) -> str:
    """Why a module is taken to hold attention; "" where it is not."""
    members = (*part._modules.items(), *part._parameters.items())  # quicker than their methods
    names = tuple(name for name, one in members if one is not None)
    is_torchs = type(part).__module__.startswith("torch.nn.modules.")
    return "" if is_torchs and not part._modules else _why_of(type(part).__name__, names)


@functools.lru_cache(maxsize=1024)  # a model's blocks are alike
def _why_of(kind: str, members: tuple[str, ...]) -> str:
    own = {name.lower() for name in members}
    article = "an" if kind[:1] in "AEIOU" else "a"
    if any(names <= own for names in PROJECTIONS):
        return f"{article} {kind} with projections to queries and keys"
    return f"{article} {kind}" if len(own) > 1 and NAMED.search(kind) else ""
