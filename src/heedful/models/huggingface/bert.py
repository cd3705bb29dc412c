"""BERT's configuration as Hugging Face writes it, to ours and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.errors import RunError
from heedful.models.bert import BertConfig
from heedful.models.huggingface.gpt2 import ACTIVATION_OF
from heedful.models.huggingface.parameter_names import BERT, Names

# Settings that change what the model computes, with the one value that ours computes.
FIXED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
# Whether each class has the head for masked words.
HEADS = {"BertForMaskedLM": True, "BertForPreTraining": True, "BertModel": False}


def lacking(description: Mapping[str, Any]) -> list[str]:
    """What a `config.json` asks for that our BERT does not have, as `name = value`."""
    asked = FIXED | {name: description[name] for name in FIXED if name in description}
    wrong = [f"{name} = {asked[name]!r}" for name, value in FIXED.items() if asked[name] != value]
    activation = description.get("hidden_act", "gelu")
    wrong += [f"hidden_act = {activation!r}"] if activation not in ACTIVATION_OF else []
    return wrong


def read_config(description: Mapping[str, Any], tensors: Collection[str]) -> BertConfig:
    """Our configuration from a `config.json` that is `lacking` nothing.

    What it leaves out has BERT's own value.

    A model gets the head of its class, and one that its checkpoint has beyond.

    Args:
        description: the content of `config.json`.
        tensors: the names of the checkpoint's.
    """
    masked_words = HEADS[class_of(description) or "BertModel"] or "cls.predictions.bias" in tensors
    if masked_words and not description.get("tie_word_embeddings", True):
        raise RunError("a BERT with tie_word_embeddings = False", expected="True")
    return BertConfig(
        vocabulary=description.get("vocab_size", 30522),
        context_length=description.get("max_position_embeddings", 512),
        segments=description.get("type_vocab_size", 2),
        width=description.get("hidden_size", 768),
        layers=description.get("num_hidden_layers", 12),
        heads=description.get("num_attention_heads", 12),
        hidden=description.get("intermediate_size", 3072),
        activation=ACTIVATION_OF[description.get("hidden_act", "gelu")],
        norm_epsilon=description.get("layer_norm_eps", 1e-12),
        padding=description.get("pad_token_id", 0),
        pooler=any(name.endswith("pooler.dense.weight") for name in tensors),
        masked_words=masked_words,
        dropout=description.get("hidden_dropout_prob", 0.1),
        attention_dropout=description.get("attention_probs_dropout_prob", 0.1),
    )


def class_of(description: Mapping[str, Any]) -> Any:
    """The class of transformers that a `config.json` is of, the first it lists; None where none."""
    named = description.get("architectures") or None
    return named[0] if isinstance(named, list) else named


def names(config: BertConfig) -> Names:
    """What the parameters of a model of this configuration are called."""
    return BERT


def unlike(config: BertConfig, kind: str) -> list[str]:
    """The settings that no BERT of transformers has: it has all of them."""
    return []


def write_config(config: BertConfig, kind: str) -> dict[str, Any]:
    """The content of a `config.json`."""
    activation = next(theirs for theirs, ours in ACTIVATION_OF.items() if ours == config.activation)
    return {
        "architectures": ["BertForMaskedLM" if config.masked_words else "BertModel"],
        "model_type": kind,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context_length,
        "type_vocab_size": config.segments,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden or 4 * config.width,
        "hidden_act": activation,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "pad_token_id": config.padding,
    }
