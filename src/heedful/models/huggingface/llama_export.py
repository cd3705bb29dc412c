"""Our GPT with rotary positions and RMSNorm, written as Llama and Qwen3; it is not read here.

The two differ by norms on queries and keys. Their feed-forward layer is gated, act(gate) · up. Ours
without a gate, by a squared ReLU, is written as a ReLU gate that equals its own up-projection, for
relu(x) · x = relu(x)²: the same numbers, until somebody trains the two apart.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.models.gpt import GPT, GPTConfig
from heedful.models.huggingface.parameter_names import LLAMA
from heedful.models.named_parameters import parameters_of

GATE_OF = {"swiglu": "silu", "relu2": "relu"}
# What both are, in our words
ALWAYS: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "norm_order": "pre",
    "logit_bias": False,
}


def unlike(config: GPTConfig, qk_norm: bool) -> list[str]:
    """The settings that Qwen3 (`qk_norm`) or Llama does not have, as `name = value`."""
    fixed = ALWAYS | {"qk_norm": qk_norm}
    if qk_norm:
        fixed |= {"bias": False, "attention_bias": False}
    elif config.bias != config.attention_bias:  # it has all biases, or none
        fixed |= {"attention_bias": config.bias}
    wrong = [name for name, value in fixed.items() if getattr(config, name) != value]
    wrong += ["activation"] if config.activation not in GATE_OF else []
    return [f"{name} = {getattr(config, name)!r}" for name in wrong]


def write_config(config: GPTConfig) -> dict[str, Any]:
    """The content of a `config.json`; of dropout, only that of the weights has a place there."""
    kind = "Qwen3" if config.qk_norm else "Llama"
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context_length,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.width // config.heads,
        "intermediate_size": config.hidden or 4 * config.width,
        "hidden_act": GATE_OF[config.activation],
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "rope_theta": config.rotary_base,  # for transformers before 5
        "attention_bias": config.attention_bias,
        **({} if config.qk_norm else {"mlp_bias": config.bias}),
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def tensors(model: GPT) -> dict[str, Tensor]:
    """The parameters under their names; query, key and value, gate and up apart."""
    config, found = model.config, dict[str, Tensor]()
    keys = config.width // config.heads * (config.kv_heads or config.heads)
    for ours, parameter in parameters_of(model).items():
        names = LLAMA.of(ours).names
        parts = parameter.chunk(len(names))
        if ".attend.projection." in ours:
            parts = parameter.split([config.width, keys, keys])
        elif ".feed.enter." in ours and config.activation == "relu2":
            parts = parameter, parameter.clone()
        found |= zip(names, parts, strict=True)
    return found
