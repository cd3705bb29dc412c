"""The settings of a training run, in three sections: text, model and train."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heedful.configuration import Configuration, setting
from heedful.errors import ArgumentError
from heedful.files import read_small
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig

HIGHEST = 1e30  # upper limit of rates, so that products with them do not overflow float32


@dataclasses.dataclass(frozen=True)
class TextSettings(Configuration):
    """Settings of the tokenizer and of the validation split."""

    tokenizer: str = setting(
        "bpe",
        "'bpe' (trained on your text), 'characters', or the name of a tiktoken encoding; for a "
        "BERT 'wordpiece' (trained on your text).",
    )
    vocabulary: int = setting(
        1024, "Size of the vocabulary of bpe (including 256 bytes) or wordpiece.", low=256
    )
    compact: bool = setting(
        True,
        "With a tiktoken encoding, restrict the vocabulary to the tokens of the text and the 256 "
        "bytes.",
    )
    validation: float = setting(
        0.1, "Share of the tokens or pairs, from the end, used for validation.", low=0.0, high=0.9
    )


@dataclasses.dataclass(frozen=True)
class TrainSettings(Configuration):
    """Settings of the optimizer, the batches, validation, checkpoints and the machine."""

    steps: int = setting(500, "Optimizer steps.", low=0, high=10**12)
    batch: int = setting(16, "Sequences in a batch, in all processes together.", low=1)
    order: str = setting(
        "random",
        "Order of the training sequences: random draws, or shuffled epochs, in which each sequence "
        "is drawn once.",
        choices=("random", "shuffled"),
    )
    accumulation: int = setting(
        1, "Batches for one step; their gradients are averaged.", low=1, high=10**6
    )
    optimizer: str = setting(
        "adamw",
        "Optimizer: adamw for all parameters, or muon for matrices in blocks and adamw for others.",
        choices=("adamw", "muon"),
    )
    learning_rate: float = setting(3e-3, "Highest learning rate.", low=0.0, high=HIGHEST)
    matrix_rate: float = setting(
        0.02, "Highest learning rate of muon, for matrices.", low=0.0, high=HIGHEST
    )
    convolution_rate: float = setting(
        0.05,
        "Highest learning rate of the short convolution, if the model has one.",
        low=0.0,
        high=HIGHEST,
    )
    warmup: int = setting(50, "Steps in which the learning rate rises from 0.", low=0)
    decay: str = setting(
        "cosine",
        "How the learning rate falls after warm-up.",
        choices=("cosine", "linear", "trapezoid", "inverse_sqrt", "constant"),
    )
    fall: float = setting(
        0.5, "Share of the steps, at the end, over which a trapezoid falls.", low=0.0, high=1.0
    )
    final_rate: float = setting(
        0.1, "Learning rate at the end, as a share of the highest.", low=0.0, high=1.0
    )
    weight_decay: float = setting(
        0.1, "AdamW's weight decay, on matrices only.", low=0.0, high=HIGHEST
    )
    matrix_decay: float = setting(0.0, "Muon's weight decay.", low=0.0, high=HIGHEST)
    momentum: float = setting(0.85, "Muon's momentum.", low=0.0, high=0.9999)
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient.", low=0.0, high=0.9999)
    beta2: float = setting(0.95, "AdamW's decay of the mean square.", low=0.0, high=0.99999)
    label_smoothing: float = setting(
        0.0,
        "Share of a target's probability that is spread evenly over all tokens in training.",
        low=0.0,
        high=0.9,
    )
    initial: str = setting(
        "normal",
        "Initial weights: normal (random), or zero (random, but 0 in the output projections of "
        "attention and feed-forward).",
        choices=("normal", "zero"),
    )
    clip: float = setting(1.0, "Maximum norm of the gradient; 0: no clipping.", low=0.0)
    evaluate_every: int = setting(100, "Steps between validations, each on the whole split.", low=1)
    save_every: int = setting(100, "Steps between checkpoints.", low=1)
    patience: int = setting(
        0, "Stop after this number of validations without a lower loss; 0: never.", low=0
    )
    watch: str | None = setting(None, "A text on which all heads are scored during training.")
    watch_every: int = setting(
        0, "Steps between two scorings; 0: about 20 scorings, more often at first.", low=0
    )
    seed: int = setting(
        1337, "Seed of the weights, the batches and dropout.", low=0, high=2**63 - 1
    )
    device: str = setting("auto", "Device to train on: auto, cpu, cuda, cuda:1, mps.")
    precision: str = setting(
        "float32",
        "Type of matrix products: float32, bfloat16, or auto (bfloat16 if it is faster on this "
        "device). Weights are always float32.",
        choices=("auto", "float32", "bfloat16"),
    )
    compile: bool = setting(
        False, "Compile the loss of a GPT and its gradient: a later start, but faster steps."
    )
    shard: bool = setting(
        False,
        "With several processes, shard weights, gradients and optimizer state (FSDP2) instead of "
        "replicating them (DDP).",
    )
    timeout: int = setting(600, "Seconds to wait for another process.", low=1)
    log: str | None = setting(
        None,
        "Services that plot the run while it trains, separated by commas: tensorboard, wandb, "
        "trackio.",
    )
    log_project: str = setting("heedful", "Name of the project in wandb and trackio.")


# Optional parts of a BERT: True if training on masked words trains them
TRAINED = {"pooler": False, "masked_words": True}
CONFIGURATIONS = {"GPT": GPTConfig, "BERT": BertConfig, "encoder–decoder": Seq2SeqConfig}


class Recipe(NamedTuple):
    """The settings of text, model and training; tokenizing the text sets the model's vocabulary.

    The kind of model determines the data: a text for a GPT or a BERT, pairs for an encoder–decoder.
    """

    text: TextSettings
    model: GPTConfig | BertConfig | Seq2SeqConfig
    train: TrainSettings

    @property
    def kind(self) -> str:
        """The kind of the model, a key of `CONFIGURATIONS`."""
        return next(kind for kind, model in CONFIGURATIONS.items() if type(self.model) is model)

    @property
    def on_pairs(self) -> bool:
        """Whether the model is trained on pairs of texts."""
        return isinstance(self.model, Seq2SeqConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as {section: {name: value}}, as in a TOML file."""
        return {section: getattr(self, section).to_dict() for section in self._fields}

    def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """Return a recipe in which `changes`, {section: {name: value}}, replace settings.

        Raises:
            ArgumentError: a section or setting is unknown, or a value is invalid.

        >>> recipe = Recipe(TextSettings(), GPTConfig(vocabulary=1), TrainSettings())
        >>> recipe.changed({"train": {"steps": 7}}).train.steps
        7
        """
        for section in changes:
            if section not in self._fields:
                raise ArgumentError(
                    f"unknown section [{section}]", expected=", ".join(self._fields)
                )
        sections = zip(self._fields, self, strict=True)
        return Recipe._make(part.changed(changes.get(name, {})) for name, part in sections)


def read_toml(path: Path) -> dict[str, dict[str, Any]]:
    """Read changes of a recipe from a TOML file with the sections [text], [model] and [train].

    Raises:
        ArgumentError: the file cannot be read, or has a setting outside a section.
    """
    try:
        content = tomllib.loads(read_small(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"cannot read settings from {path}: {error}",
            expected="a TOML file with [text], [model] and [train] sections",
        ) from error
    for section, settings in content.items():
        if not isinstance(settings, dict):
            raise ArgumentError(
                f"{section!r} is outside a section in {path}",
                expected="every setting under [text], [model] or [train]",
            )
    return content
