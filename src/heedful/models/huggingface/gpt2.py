"""Conversion of GPT-2's configuration between Hugging Face and heedful."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.models.gpt import GPTConfig
from heedful.models.huggingface.config_fields import is_tied
from heedful.models.huggingface.parameter_names import GPT2, ParameterNames

ACTIVATION_OF = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
# Settings that change the computation → the only value that heedful supports.
FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
# The settings of GPTConfig that every GPT-2 shares.
COMMON_SETTINGS: dict[str, Any] = {
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
# heedful's setting → Hugging Face's name.
SETTING_NAMES = {
    "vocabulary": "vocab_size",
    "context_length": "n_positions",
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout": "resid_pdrop",  # heedful uses the same dropout for attention weights
    "embedding_dropout": "embd_pdrop",
}


def unsupported(description: Mapping[str, Any]) -> list[str]:
    """Return the settings of a `config.json` that heedful's GPT lacks, as `name = value`."""
    return unsupported_values(description, FIXED, "activation_function")


def unsupported_values(
    description: Mapping[str, Any], supported: Mapping[str, Any], activation: str
) -> list[str]:
    """Return the settings that differ from a supported value, and an unsupported activation."""
    wrong = [name for name, value in supported.items() if description.get(name, value) != value]
    if description.get(activation, "gelu") not in ACTIVATION_OF:
        wrong.append(activation)
    return [f"{name} = {description[name]!r}" for name in wrong]


def read_config(description: Mapping[str, Any], tensors: Collection[str]) -> GPTConfig:
    """Convert a `config.json` without `unsupported` settings to heedful's configuration."""
    return GPTConfig(
        hidden=description.get("n_inner"),
        activation=ACTIVATION_OF[description.get("activation_function", "gelu_new")],
        tied=is_tied(description, tensors, default=True),
        **{name: description[key] for name, key in SETTING_NAMES.items()},
        **COMMON_SETTINGS,
    )


def names(config: GPTConfig) -> ParameterNames:
    """Return the parameter names of a model of this configuration."""
    return GPT2


def mismatches(config: GPTConfig, kind: str) -> list[str]:
    """Return the settings that GPT-2 lacks, as `name = value`; an empty list for a GPT-2."""
    wrong = [name for name, value in COMMON_SETTINGS.items() if getattr(config, name) != value]
    if config.activation not in ACTIVATION_OF.values():
        wrong.append("activation")
    if config.kv_heads not in (None, config.heads):
        wrong.append("kv_heads")
    if config.width_of_heads * config.heads != config.width:
        wrong.append("head_width")
    if config.feed_bias is False:
        wrong.append("feed_bias")
    return [f"{name} = {getattr(config, name)!r}" for name in wrong]


def write_config(config: GPTConfig, kind: str) -> dict[str, Any]:
    """Return the content of a `config.json` for a configuration without `mismatches`."""
    activation = next(key for key, name in ACTIVATION_OF.items() if name == config.activation)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": kind,
        **{key: getattr(config, name) for name, key in SETTING_NAMES.items()},
        "n_inner": config.hidden,
        "activation_function": activation,
        "tie_word_embeddings": config.tied,
        "attn_pdrop": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }
