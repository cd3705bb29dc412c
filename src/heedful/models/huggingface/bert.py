"""Conversion of BERT's configuration between Hugging Face and heedful."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.errors import RunError
from heedful.models.bert import BertConfig
from heedful.models.huggingface.config_fields import class_of
from heedful.models.huggingface.gpt2 import ACTIVATION_OF, unsupported_values
from heedful.models.huggingface.parameter_names import BERT, ParameterNames

# Settings that change the computation → the only value that heedful supports.
FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
# Class of transformers → whether it has a masked-word head.
HEADS = {"BertForMaskedLM": True, "BertForPreTraining": True, "BertModel": False}
# heedful's setting → Hugging Face's name; both have the same defaults.
SETTING_NAMES = {
    "vocabulary": "vocab_size",
    "context_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "norm_epsilon": "layer_norm_eps",
    "padding": "pad_token_id",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}


def unsupported(description: Mapping[str, Any]) -> list[str]:
    """Return the settings of a `config.json` that heedful's BERT lacks, as `name = value`."""
    return unsupported_values(description, FIXED, "hidden_act")


def read_config(description: Mapping[str, Any], tensors: Collection[str]) -> BertConfig:
    """Convert a `config.json` without `unsupported` settings to heedful's configuration.

    The model has a masked-word head if its class or the names in `tensors` include one.
    """
    masked_words = HEADS[class_of(description) or "BertModel"] or "cls.predictions.bias" in tensors
    if masked_words and not description.get("tie_word_embeddings", True):
        raise RunError("a BERT with tie_word_embeddings = False", expected="True")
    return BertConfig(
        activation=ACTIVATION_OF[description.get("hidden_act", "gelu")],
        pooler=any(name.endswith("pooler.dense.weight") for name in tensors)
        or not (tensors or masked_words),  # a configuration alone
        masked_words=masked_words,
        **{name: description[key] for name, key in SETTING_NAMES.items() if key in description},
    )


def names(config: BertConfig) -> ParameterNames:
    """Return the parameter names of a model of this configuration."""
    return BERT


def mismatches(config: BertConfig, kind: str) -> list[str]:
    """Return the settings that transformers' BERT lacks: an empty list."""
    return []


def write_config(config: BertConfig, kind: str) -> dict[str, Any]:
    """Return the content of a `config.json`."""
    activation = next(key for key, name in ACTIVATION_OF.items() if name == config.activation)
    return {
        "architectures": ["BertForMaskedLM" if config.masked_words else "BertModel"],
        "model_type": kind,
        **{key: getattr(config, name) for name, key in SETTING_NAMES.items()},
        "intermediate_size": config.hidden or 4 * config.width,
        "hidden_act": activation,
    }
