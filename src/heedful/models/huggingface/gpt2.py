"""GPT-2's configuration as Hugging Face writes it, to ours and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.models.gpt import GPTConfig
from heedful.models.huggingface.parameter_names import GPT2, Names

ACTIVATION_OF = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
# Settings that change what the model computes, with the one value that ours computes.
FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
# What every GPT-2 is, in our words; the rest of GPTConfig is free.
ALWAYS: dict[str, Any] = {
    "positions": "learned",
    "norm": "layer",
    "norm_order": "pre",
    "qk_norm": False,
    "bias": True,
    "attention_bias": True,
    "logit_bias": False,
    "window": None,
    "convolution": 0,
}


# Our settings that are theirs by another name.
SAME = {
    "vocabulary": "vocab_size",
    "context_length": "n_positions",
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout": "resid_pdrop",  # ours is the same for residuals and for weights
    "embedding_dropout": "embd_pdrop",
}


def lacking(description: Mapping[str, Any]) -> list[str]:
    """What a `config.json` asks for that our GPT does not have, as `name = value`."""
    return differing(description, FIXED, "activation_function")


def differing(
    description: Mapping[str, Any], fixed: Mapping[str, Any], activation: str
) -> list[str]:
    """Settings that have another value than the `fixed` one, and an activation that ours lacks."""
    wrong = [name for name, value in fixed.items() if description.get(name, value) != value]
    if description.get(activation, "gelu") not in ACTIVATION_OF:
        wrong.append(activation)
    return [f"{name} = {description[name]!r}" for name in wrong]


def read_config(description: Mapping[str, Any], tensors: Collection[str]) -> GPTConfig:
    """Our configuration from a `config.json` that is `lacking` nothing.

    Without an output layer among the names of its tensors it shares the token table.
    """
    return GPTConfig(
        hidden=description.get("n_inner"),
        activation=ACTIVATION_OF[description.get("activation_function", "gelu_new")],
        tied=description.get("tie_word_embeddings", True) or "lm_head.weight" not in tensors,
        **{ours: description[theirs] for ours, theirs in SAME.items()},
        **ALWAYS,
    )


def names(config: GPTConfig) -> Names:
    """What the parameters of a model of this configuration are called."""
    return GPT2


def unlike(config: GPTConfig, kind: str) -> list[str]:
    """The settings that no GPT-2 has, as `name = value`; an empty list where it is one."""
    wrong = [
        f"{name} = {getattr(config, name)!r}"
        for name, value in ALWAYS.items()
        if getattr(config, name) != value
    ]
    if config.activation not in ACTIVATION_OF.values():
        wrong.append(f"activation = {config.activation!r}")
    if config.kv_heads not in (None, config.heads):
        wrong.append(f"kv_heads = {config.kv_heads}")
    if config.width_of_heads * config.heads != config.width:
        wrong.append(f"head_width = {config.head_width}")
    if config.feed_bias is False:
        wrong.append("feed_bias = False")
    return wrong


def write_config(config: GPTConfig, kind: str) -> dict[str, Any]:
    """The content of a `config.json` for a configuration that is `unlike` in nothing."""
    activation = next(theirs for theirs, ours in ACTIVATION_OF.items() if ours == config.activation)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": kind,
        **{theirs: getattr(config, ours) for ours, theirs in SAME.items()},
        "n_inner": config.hidden,
        "activation_function": activation,
        "tie_word_embeddings": config.tied,
        "attn_pdrop": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }
