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


def lacking(description: Mapping[str, Any]) -> list[str]:
    """What a `config.json` asks for that our GPT does not have, as `name = value`."""
    asked = FIXED | {name: description[name] for name in FIXED if name in description}
    wrong = [f"{name} = {asked[name]!r}" for name, value in FIXED.items() if asked[name] != value]
    activation = description.get("activation_function", "gelu_new")
    return (
        wrong if activation in ACTIVATION_OF else [*wrong, f"activation_function = {activation!r}"]
    )


def read_config(description: Mapping[str, Any], tensors: Collection[str]) -> GPTConfig:
    """Our configuration from a `config.json` that is `lacking` nothing.

    What it leaves out has GPT-2's own value.

    Dropout is read from `resid_pdrop`: ours is the same for residuals and attention weights.

    Args:
        description: the content of `config.json`.
        tensors: the names of the checkpoint's; one without an output layer shares the token table.
    """
    return GPTConfig(
        vocabulary=description.get("vocab_size", 50257),
        context_length=description.get("n_positions", 1024),
        width=description.get("n_embd", 768),
        layers=description.get("n_layer", 12),
        heads=description.get("n_head", 12),
        hidden=description.get("n_inner"),
        activation=ACTIVATION_OF[description.get("activation_function", "gelu_new")],
        norm_epsilon=description.get("layer_norm_epsilon", 1e-5),
        tied=description.get("tie_word_embeddings", True) or "lm_head.weight" not in tensors,
        dropout=description.get("resid_pdrop", 0.1),
        embedding_dropout=description.get("embd_pdrop", 0.1),
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
        "vocab_size": config.vocabulary,
        "n_positions": config.context_length,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.hidden,
        "activation_function": activation,
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "embd_pdrop": config.embedding_dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }
