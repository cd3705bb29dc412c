"""Settings of `heedful train` that a run would not heed, or may not change: they are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

from heedful.configuration import Configuration
from heedful.errors import ArgumentError
from heedful.models.configurations import BertConfig, GPTConfig, Seq2SeqConfig
from heedful.train.settings import TRAINED, Recipe

OF_GPT, OF_BERT, OF_PAIRS = (
    {field.name for field in dataclasses.fields(config)}
    for config in (GPTConfig, BertConfig, Seq2SeqConfig)
)


def refuse_foreign(model: dict[str, Any], recipe: Recipe) -> None:
    """Refuse settings of the other kind of model; what neither has is refused with the nearest."""
    known = OF_GPT | OF_BERT | OF_PAIRS
    has = {field.name for field in dataclasses.fields(recipe.model)}
    free = sorted(has - {"vocabulary", "padding"} - set(TRAINED))
    for name in model:
        if name in known - has:
            raise ArgumentError(
                f"{name} = {model[name]!r} for a model of the kind {recipe.kind}",
                expected="a setting of such a model: " + ", ".join(free),
            )


def refuse_idle(text: dict[str, Any], tokenizer: str) -> None:
    """Refuse settings that the tokenizer would not heed: who sets one expects something of it."""
    from heedful.text import BPETokenizer, CharacterTokenizer, WordPieceTokenizer

    learned = (BPETokenizer.kind, WordPieceTokenizer.kind)
    own = (*learned, CharacterTokenizer.kind)
    idle = {"vocabulary": tokenizer not in learned, "compact": tokenizer in own}
    heeding = {
        "vocabulary": "--tokenizer " + " or ".join(learned),
        "compact": "a tiktoken encoding",
    }
    for name in text:
        if idle.get(name):
            raise ArgumentError(
                f"{name} = {text[name]!r} with the tokenizer {tokenizer}",
                expected=f"it with {heeding[name]} only",
                remedy=f"leave {name} out, or choose another --tokenizer",
            )


def refuse_idle_training(asked: dict[str, Any], recipe: Recipe) -> None:
    """Refuse settings of training that the others leave without effect."""
    settings = recipe.train
    needs = {
        **dict.fromkeys(("matrix_rate", "matrix_decay", "momentum"), ("optimizer", "muon")),
        "fall": ("decay", "trapezoid"),
    }
    if "watch_every" in asked and settings.watch is None:
        raise ArgumentError(
            f"watch_every = {asked['watch_every']} without a text to watch",
            expected="it with --watch or --watch-file",
        )
    if "convolution_rate" in asked and not getattr(recipe.model, "convolution", 0):
        raise ArgumentError(
            f"convolution_rate = {asked['convolution_rate']} without a short convolution",
            expected="it with --convolution, of a GPT",
        )
    for name in asked:
        other, value = needs.get(name, ("", ""))
        if other and getattr(settings, other) != value:
            raise ArgumentError(
                f"{name} = {asked[name]!r} with the {other} {getattr(settings, other)}",
                expected=f"it with --{other} {value} only",
                remedy=f"leave {name} out, or add --{other} {value}",
            )


def is_other(begun: Configuration, name: str, value: Any) -> bool:
    """Whether a setting is not what a run was begun with; one that is refused cannot be."""
    try:
        return begun.changed({name: value}) != begun
    except ArgumentError:
        return True
