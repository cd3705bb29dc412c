"""BERT's configuration as Hugging Face writes it, to ours and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.errors import RunError
from heedful.models.bert import BertConfig
from heedful.models.huggingface.gpt2 import ACTIVATION_OF, differing
from heedful.models.huggingface.parameter_names import BERT, Names

# Settings that change what the model computes, with the one value that ours computes.
FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
# Whether each class has the head for masked words.
HEADS = {"BertForMaskedLM": True, "BertForPreTraining": True, "BertModel": False}
# Our settings that are theirs by another name; where a file leaves one out, the defaults are equal.
SAME = {
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


def lacking(description: Mapping[str, Any]) -> list[str]:
    """What a `config.json` asks for that our BERT does not have, as `name = value`."""
    return differing(description, FIXED, "hidden_act")


def read_config(description: Mapping[str, Any], tensors: Collection[str]) -> BertConfig:
    """Our configuration from a `config.json` that is `lacking` nothing.

    A model gets the head of its class, and one that its tensors have beyond, by their names.
    """
    masked_words = HEADS[class_of(description) or "BertModel"] or "cls.predictions.bias" in tensors
    if masked_words and not description.get("tie_word_embeddings", True):
        raise RunError("a BERT with tie_word_embeddings = False", expected="True")
    return BertConfig(
        activation=ACTIVATION_OF[description.get("hidden_act", "gelu")],
        pooler=any(name.endswith("pooler.dense.weight") for name in tensors),
        masked_words=masked_words,
        **{ours: description[theirs] for ours, theirs in SAME.items() if theirs in description},
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
        **{theirs: getattr(config, ours) for ours, theirs in SAME.items()},
        "intermediate_size": config.hidden or 4 * config.width,
        "hidden_act": activation,
    }
