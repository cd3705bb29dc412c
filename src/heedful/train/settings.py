"""What a training run is made of: settings of the text, the model and the training; presets."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heedful.configuration import Configuration, all_of, setting
from heedful.errors import ArgumentError
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig


@dataclasses.dataclass(frozen=True)
class TextSettings(Configuration):
    """How text becomes tokens."""

    tokenizer: str = setting(
        "bpe",
        "'bpe' (trained on your text), 'characters', or a tiktoken encoding by name; for a BERT "
        "'wordpiece', trained too.",
    )
    vocabulary: int = setting(
        1024, "Tokens that bpe or wordpiece learns, a BPE's 256 bytes among them.", low=256
    )
    compact: bool = setting(
        True, "Keep table rows only for the ids that the text uses, and the 256 bytes."
    )
    validation: float = setting(
        0.1, "Share of the tokens, or pairs, at the end, kept for validation.", low=0.0, high=0.9
    )


@dataclasses.dataclass(frozen=True)
class TrainSettings(Configuration):
    """How the model is trained."""

    steps: int = setting(500, "Optimizer steps.", low=0)
    batch: int = setting(16, "Sequences in a batch.", low=1)
    accumulation: int = setting(1, "Batches whose gradients are added for one step.", low=1)
    optimizer: str = setting(
        "adamw",
        "What takes a step: adamw, or muon for the matrices of the blocks and adamw for the rest.",
        choices=("adamw", "muon"),
    )
    learning_rate: float = setting(3e-3, "Highest learning rate.", low=0.0)
    matrix_rate: float = setting(
        0.02, "Highest learning rate of the matrices that muon trains.", low=0.0
    )
    warmup: int = setting(50, "Steps in which the learning rate rises from 0.", low=0)
    decay: str = setting(
        "cosine",
        "How the learning rate falls after warm-up.",
        choices=("cosine", "linear", "trapezoid", "inverse_sqrt", "constant"),
    )
    fall: float = setting(
        0.5, "Share of the steps, the last ones, in which a trapezoid falls.", low=0.0, high=1.0
    )
    final_rate: float = setting(
        0.1, "Learning rate at the end, as a share of the highest.", low=0.0, high=1.0
    )
    weight_decay: float = setting(0.1, "AdamW's weight decay, on matrices only.", low=0.0)
    matrix_decay: float = setting(0.0, "Muon's weight decay.", low=0.0)
    momentum: float = setting(0.85, "Muon's decay of the mean of gradients.", low=0.0, high=0.9999)
    beta1: float = setting(0.9, "AdamW's decay of the mean of gradients.", low=0.0, high=0.9999)
    beta2: float = setting(0.95, "AdamW's decay of their squares.", low=0.0, high=0.99999)
    label_smoothing: float = setting(
        0.0,
        "Share of each target's weight that is spread over all tokens while training.",
        low=0.0,
        high=0.9,
    )
    initial: str = setting(
        "normal",
        "Weights to begin with: normal, the model's own, or zero where a block adds to its input.",
        choices=("normal", "zero"),
    )
    clip: float = setting(1.0, "Largest norm of the gradient; 0 leaves it as it is.", low=0.0)
    evaluate_every: int = setting(100, "Steps between validations over the whole split.", low=1)
    save_every: int = setting(100, "Steps between checkpoints.", low=1)
    patience: int = setting(
        0, "Validations without a lower loss before stopping early; 0 never stops.", low=0
    )
    seed: int = setting(
        1337, "Seed of the weights, the batches and dropout.", low=0, high=2**63 - 1
    )
    device: str = setting("auto", "Where to train: auto, cpu, cuda, cuda:1, mps.")
    precision: str = setting(
        "float32",
        "Number type of the products; bfloat16 keeps the weights in float32.",
        choices=("float32", "bfloat16"),
    )


# The parts of a BERT, and whether masked words train them; the others would stay as drawn
TRAINED = {"pooler": False, "masked_words": True, "next_sentence": False}
CONFIGURATIONS = {"GPT": GPTConfig, "BERT": BertConfig, "encoder–decoder": Seq2SeqConfig}


class Recipe(NamedTuple):
    """The three together; the model's vocabulary is filled in once the text is tokenized.

    The kind of model says what it is trained on: a GPT and a BERT on a text, an encoder–decoder on
    pairs.
    """

    text: TextSettings
    model: GPTConfig | BertConfig | Seq2SeqConfig
    train: TrainSettings

    @property
    def kind(self) -> str:
        """What kind of model it is, a key of `CONFIGURATIONS`."""
        return next(kind for kind, model in CONFIGURATIONS.items() if type(self.model) is model)

    @property
    def on_pairs(self) -> bool:
        """Whether it is for pairs of texts."""
        return isinstance(self.model, Seq2SeqConfig)

    def to_dict(self) -> dict[str, Any]:
        """As nested dictionaries, as in a TOML file."""
        return {section: getattr(self, section).to_dict() for section in self._fields}

    def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """With some settings changed: {section: {name: value}}.

        >>> PRESETS["quick"].changed({"train": {"steps": 7}}).train.steps
        7
        """
        for section in changes:
            if section not in self._fields:
                raise ArgumentError(
                    f"unknown section [{section}]", expected=", ".join(self._fields)
                )
        return Recipe(
            self.text.changed(changes.get("text", {})),
            self.model.changed(changes.get("model", {})),
            self.train.changed(changes.get("train", {})),
        )


# Muon, a trapezoid, blocks that begin with zero: docs/training.md says what each part is worth
FAST = TrainSettings(optimizer="muon", initial="zero", decay="trapezoid", final_rate=0.0, warmup=10)
# The shape of document 004 (Zhang)
ZERO_TO_HERO = GPTConfig(
    vocabulary=1,
    context_length=16,
    width=64,
    layers=8,
    heads=4,
    positions="sinusoidal",
    activation="relu",
    norm="layer",
    qk_norm=False,
    bias=True,
    logit_bias=True,
    tied=False,
    dropout=0.1,
)

PRESETS = {
    "quick": Recipe(
        TextSettings(),
        GPTConfig(vocabulary=1),
        dataclasses.replace(FAST, steps=800, batch=8, evaluate_every=200, save_every=200),
    ),
    # For a text as short as the embedded one, which is read five times over
    "demo": Recipe(
        TextSettings(),
        GPTConfig(vocabulary=1),
        dataclasses.replace(
            FAST, steps=800, batch=8, matrix_decay=0.5, evaluate_every=200, save_every=200
        ),
    ),
    # The model of document 004 (Zhang, *LLM: From Zero to Hero*) with its numbers, as its author's
    # own code has it: 8 blocks, dropout, AdamW, and norms before each part. Where the document
    # itself puts them, after each sum, is norm_order="post".
    "zero-to-hero": Recipe(
        TextSettings(tokenizer="cl100k_base"),
        ZERO_TO_HERO,
        TrainSettings(
            steps=5000,
            batch=4,
            learning_rate=1e-3,
            warmup=0,
            decay="constant",
            weight_decay=0.01,
            beta2=0.999,
            clip=0.0,
            evaluate_every=500,
            save_every=500,
        ),
    ),
    # The same shape by the recipe of today, to the same loss on the text it trains on: larger
    # batches, a twentieth of the steps, and no dropout, which only delays what is learned by heart
    "zero-to-hero-fast": Recipe(
        TextSettings(tokenizer="cl100k_base"),
        dataclasses.replace(ZERO_TO_HERO, dropout=0.0),
        dataclasses.replace(
            FAST,
            steps=240,
            batch=64,
            learning_rate=0.01,
            weight_decay=0.0,
            evaluate_every=120,
            save_every=240,
        ),
    ),
    # The 124 M shape of Radford et al. 2019, trained as nanoGPT does
    "gpt2": Recipe(
        TextSettings(tokenizer="gpt2", compact=False),
        GPTConfig(
            vocabulary=1,
            context_length=1024,
            width=768,
            layers=12,
            heads=12,
            positions="learned",
            activation="gelu_tanh",
            norm="layer",
            qk_norm=False,
            bias=True,
            attention_bias=True,
        ),
        TrainSettings(
            steps=600_000,
            batch=12,
            accumulation=40,
            learning_rate=6e-4,
            warmup=2000,
            evaluate_every=1000,
            save_every=1000,
        ),
    ),
    # A small BERT for one's own text; what it has is what masked words train
    "bert": Recipe(
        TextSettings(tokenizer="wordpiece", vocabulary=2048),
        BertConfig(vocabulary=1, context_length=64, width=128, layers=4, heads=4, pooler=False),
        TrainSettings(
            steps=2000,
            batch=32,
            learning_rate=3e-3,
            warmup=200,
            weight_decay=0.01,
            beta2=0.98,
            evaluate_every=250,
            save_every=250,
        ),
    ),
    # The base model of Devlin et al. 2018: section 3 and appendix A.2
    "bert-base": Recipe(
        TextSettings(tokenizer="wordpiece", vocabulary=30_000),
        BertConfig(vocabulary=1, pooler=False),
        TrainSettings(
            steps=1_000_000,
            batch=16,
            accumulation=16,
            learning_rate=1e-4,
            warmup=10_000,
            decay="linear",
            final_rate=0.0,
            weight_decay=0.01,
            beta2=0.999,
            evaluate_every=5000,
            save_every=5000,
        ),
    ),
    "pairs": Recipe(
        TextSettings(vocabulary=4096),
        Seq2SeqConfig(vocabulary=3),
        TrainSettings(
            steps=5000,
            batch=64,
            learning_rate=1e-3,
            warmup=400,
            weight_decay=0.01,
            beta2=0.98,
            label_smoothing=0.1,
            evaluate_every=500,
            save_every=500,
        ),
    ),
    # The embedded example: dates in many written forms to ISO 8601, a character a token
    "dates": Recipe(
        TextSettings(tokenizer="characters", validation=0.01),
        Seq2SeqConfig(vocabulary=3, context_length=40, width=64, heads=4, dropout=0.0),
        TrainSettings(
            steps=1000,
            batch=64,
            learning_rate=3e-3,
            warmup=100,
            weight_decay=0.01,
            beta2=0.98,
            label_smoothing=0.1,
            evaluate_every=200,
            save_every=200,
        ),
    ),
    # The base model of Vaswani et al. 2017: sections 3 and 5, and table 3
    "transformer-base": Recipe(
        TextSettings(vocabulary=37_000),
        Seq2SeqConfig(
            vocabulary=3, context_length=256, width=512, layers=6, heads=8, norm_order="post"
        ),
        TrainSettings(
            steps=100_000,
            batch=64,
            accumulation=16,  # about 25,000 tokens of each side a step
            learning_rate=7e-4,
            warmup=4000,
            decay="inverse_sqrt",
            weight_decay=0.0,
            beta2=0.98,
            clip=0.0,
            label_smoothing=0.1,
            evaluate_every=1000,
            save_every=1000,
        ),
    ),
}


def preset(name: str) -> Recipe:
    """The recipe of a name; an `ArgumentError` names all, the nearest first, where it is none."""
    if name not in PRESETS:
        raise ArgumentError(f"preset {name!r}", expected=all_of(name, PRESETS))
    return PRESETS[name]


def read_toml(path: Path) -> dict[str, dict[str, Any]]:
    """Changes to a recipe from a TOML file with the sections [text], [model] and [train]."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"cannot read settings from {path}: {error}",
            expected="a TOML file with [text], [model] and [train] sections",
        ) from error
    for section, settings in content.items():
        if not isinstance(settings, dict):
            raise ArgumentError(
                f"{section!r} stands outside a section in {path}",
                expected="it under [text], [model] or [train]",
            )
    return content
