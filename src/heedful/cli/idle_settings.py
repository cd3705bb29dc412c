"""Settings of `heedful train` that a run would not heed: they are refused."""

from __future__ import annotations

from typing import Any

from heedful.errors import ArgumentError
from heedful.train.settings import Recipe


def refuse_idle(changes: dict[str, dict[str, Any]], recipe: Recipe) -> None:
    """Refuse settings of the text and of training that others leave without effect."""
    from heedful.text import BPETokenizer, CharacterTokenizer, WordPieceTokenizer

    tokenizer, training = recipe.text.tokenizer, recipe.train
    learned = (BPETokenizer.kind, WordPieceTokenizer.kind)
    is_encoding = tokenizer not in (*learned, CharacterTokenizer.kind)
    muon = (training.optimizer == "muon", "--optimizer muon")
    needs = {  # whether a setting has an effect, and what it needs
        "vocabulary": (tokenizer in learned, "--tokenizer bpe or wordpiece"),
        "compact": (is_encoding, "--tokenizer and a tiktoken encoding"),
        "matrix_rate": muon,
        "matrix_decay": muon,
        "momentum": muon,
        "fall": (training.decay == "trapezoid", "--decay trapezoid"),
        "watch_every": (training.watch is not None, "--watch or --watch-file"),
        "convolution_rate": (
            bool(getattr(recipe.model, "convolution", 0)),
            "--convolution, of a GPT",
        ),
    }
    for name, value in (changes.get("text", {}) | changes.get("train", {})).items():
        has_effect, needed = needs.get(name, (True, ""))
        if not has_effect:
            raise ArgumentError(
                f"{name} = {value!r}, which has no effect here",
                expected=f"it with {needed}",
                remedy=f"leave {name} out, or add that",
            )
