"""The presets: named recipes for `heedful train --preset`."""

from __future__ import annotations

import dataclasses

from heedful.configuration import nearest
from heedful.errors import ArgumentError
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig
from heedful.train.settings import Recipe, TextSettings, TrainSettings

# The effect of each setting is measured in docs/training.md
FAST = TrainSettings(
    optimizer="muon", initial="zero", decay="trapezoid", final_rate=0.0, warmup=10,
    order="shuffled", precision="auto",
)  # fmt: skip
# The architecture of document 004 (Zhang)
ZERO_TO_HERO = GPTConfig(
    vocabulary=1, context_length=16, width=64, layers=8, heads=4, positions="sinusoidal",
    activation="relu", norm="layer", qk_norm=False, bias=True, logit_bias=True, tied=False,
    dropout=0.1,
)  # fmt: skip

PRESETS = {
    # Weight decay is strong, because a user's text is usually short and read several times
    "quick": Recipe(
        TextSettings(),
        GPTConfig(vocabulary=1),
        dataclasses.replace(
            FAST, steps=1000, batch=8, matrix_decay=0.5, weight_decay=1.0,
            evaluate_every=200, save_every=200,
        ),
    ),
    # With one token per character, a short convolution shows the model which characters are
    # adjacent. With BPE tokens, the convolution causes overfitting after about two epochs.
    "characters": Recipe(
        TextSettings(tokenizer="characters"),
        GPTConfig(vocabulary=1, convolution=3),
        dataclasses.replace(FAST, steps=800, batch=8, evaluate_every=200, save_every=200),
    ),
    # The model in the code of document 004 (Zhang, *LLM: From Zero to Hero*): 8 blocks, dropout,
    # AdamW, and norms before attention and feed-forward. The document's text has the norms after
    # the residual sums (norm_order="post").
    "zero-to-hero": Recipe(
        TextSettings(tokenizer="cl100k_base"),
        ZERO_TO_HERO,
        TrainSettings(
            steps=5000, batch=4, learning_rate=1e-3, warmup=0, decay="constant",
            weight_decay=0.01, beta2=0.999, clip=0.0, evaluate_every=500, save_every=500,
        ),
    ),
    # The same architecture, trained to the same loss by a modern recipe: larger batches, a
    # twentieth of the steps, and no dropout: it would only delay memorisation of the text
    "zero-to-hero-fast": Recipe(
        TextSettings(tokenizer="cl100k_base"),
        dataclasses.replace(ZERO_TO_HERO, dropout=0.0),
        dataclasses.replace(
            FAST, steps=240, batch=64, learning_rate=0.01, weight_decay=0.0,
            evaluate_every=120, save_every=240,
        ),
    ),
    # The 124M model of Radford et al. 2019, trained as in nanoGPT
    "gpt2": Recipe(
        TextSettings(tokenizer="gpt2", compact=False),
        GPTConfig(
            vocabulary=1, context_length=1024, width=768, layers=12, heads=12,
            positions="learned", activation="gelu_tanh", norm="layer", qk_norm=False, bias=True,
            attention_bias=True,
        ),
        TrainSettings(
            steps=600_000, batch=12, accumulation=40, learning_rate=6e-4, warmup=2000,
            evaluate_every=1000, save_every=1000,
        ),
    ),
    # A small BERT for a user's text, without the pooler, because masked words do not train it
    "bert": Recipe(
        TextSettings(tokenizer="wordpiece", vocabulary=2048),
        BertConfig(vocabulary=1, context_length=64, width=128, layers=4, heads=4, pooler=False),
        TrainSettings(
            steps=2000, batch=32, learning_rate=3e-3, warmup=200, weight_decay=0.01, beta2=0.98,
            evaluate_every=250, save_every=250,
        ),
    ),
    # The base model of Devlin et al. 2018: section 3 and appendix A.2
    "bert-base": Recipe(
        TextSettings(tokenizer="wordpiece", vocabulary=30_000),
        BertConfig(vocabulary=1, pooler=False),
        TrainSettings(
            steps=1_000_000, batch=16, accumulation=16, learning_rate=1e-4, warmup=10_000,
            decay="linear", final_rate=0.0, weight_decay=0.01, beta2=0.999,
            evaluate_every=5000, save_every=5000,
        ),
    ),
    "pairs": Recipe(
        TextSettings(vocabulary=4096),
        Seq2SeqConfig(vocabulary=3),
        TrainSettings(
            steps=5000, batch=64, learning_rate=1e-3, warmup=400, weight_decay=0.01, beta2=0.98,
            label_smoothing=0.1, evaluate_every=500, save_every=500,
        ),
    ),
    # The built-in pairs: dates in many written forms to ISO 8601, one token per character
    "dates": Recipe(
        TextSettings(tokenizer="characters", validation=0.01),
        Seq2SeqConfig(vocabulary=3, context_length=40, width=64, heads=4, dropout=0.0),
        TrainSettings(
            steps=1000, batch=64, learning_rate=3e-3, warmup=100, weight_decay=0.01, beta2=0.98,
            label_smoothing=0.1, evaluate_every=200, save_every=200,
        ),
    ),
    # The base model of Vaswani et al. 2017: sections 3 and 5, and table 3. A step has about 25,000
    # source tokens and as many target tokens.
    "transformer-base": Recipe(
        TextSettings(vocabulary=37_000),
        Seq2SeqConfig(
            vocabulary=3, context_length=256, width=512, layers=6, heads=8, norm_order="post"
        ),
        TrainSettings(
            steps=100_000, batch=64, accumulation=16, learning_rate=7e-4, warmup=4000,
            decay="inverse_sqrt", weight_decay=0.0, beta2=0.98, clip=0.0, label_smoothing=0.1,
            evaluate_every=1000, save_every=1000,
        ),
    ),
}  # fmt: skip


def preset(name: str) -> Recipe:
    """Return the preset of a name; raise an `ArgumentError` with the nearest names if unknown."""
    if name not in PRESETS:
        raise ArgumentError(f"preset {name!r}", expected=nearest(name, PRESETS))
    return PRESETS[name]
