"""Entries of a `config.json` of Hugging Face that several families share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def class_of(description: Mapping[str, Any]) -> Any:
    """Return the first class that a `config.json` lists; None if it lists none."""
    classes = description.get("architectures") or None
    return classes[0] if isinstance(classes, list) else classes


def is_tied(description: Mapping[str, Any], tensors: Collection[str], default: bool) -> bool:
    """Return whether the output layer shares the token table.

    A class without an output layer, such as LlamaModel, gets one that does. `default` is the value
    of a missing `tie_word_embeddings`.
    """
    name = str(class_of(description))
    is_bare = name.endswith("Model") and not name.endswith("LMHeadModel")
    return (is_bare and "lm_head.weight" not in tensors) or bool(
        description.get("tie_word_embeddings", default)
    )
