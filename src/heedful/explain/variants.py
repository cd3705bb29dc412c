"""Explanations of attention without a model.

They show variants of attention on any text, and the numbers that document 004 (Zhang) prints.
`docs/documents.md` lists the documents.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from heedful.errors import ArgumentError
from heedful.explain.attention import attend, attention_stages
from heedful.explain.common_stages import POSITION_SUM, sinusoid_stage, sum_stage
from heedful.explain.stage_types import Explanation, Section, Stage, stored
from heedful.layers import (
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    SelfAttention,
    SimpleSelfAttention,
)
from heedful.ops.indexing import check_index
from heedful.ops.positions import sinusoidal
from heedful.text.example_texts import EMBEDDINGS, SENTENCE
from heedful.text.words import words

WEIGHTS_NOTE = (
    "These weights turn each token's vector into a query, a key and a value. A trained model has "
    "learned its weights; these are random numbers, drawn from the seed."
)
VECTORS_002 = dict(zip(SENTENCE.split(), EMBEDDINGS, strict=True))


class Variant(NamedTuple):
    """A variant of attention: a function that constructs its layer, a description, and defaults."""

    layer: Callable[[int, int, int | None], nn.Module]  # called with width, heads, head width
    description: str
    width: int = 3
    heads: int | None = None  # None: always a single head
    causal: bool = False


VARIANTS = {
    "simple": Variant(
        lambda width, heads, head_width: SimpleSelfAttention(),
        "self-attention without weights (document 002, after Raschka)",
    ),
    "trainable": Variant(
        lambda width, heads, head_width: SelfAttention(width, head_width),
        "self-attention with trainable weights (documents 002 and 003, after Raschka)",
    ),
    "projected": Variant(
        lambda width, heads, head_width: SelfAttention(
            width, head_width or max(1, width // 8), project_back=True, residual=True
        ),
        "narrow queries, keys and values; projected context plus input (document 001, Pahwa)",
        width=128,
    ),
    "causal": Variant(
        lambda width, heads, head_width: CausalAttention(width, head_width),
        "no token attends to a later one (documents 002 and 003, after Raschka)",
        causal=True,
    ),
    "multihead": Variant(
        lambda width, heads, head_width: MultiHeadAttention(width, heads, head_width=head_width),
        "several causal heads, computed together (document 003, after Raschka)",
        width=4,
        heads=2,
        causal=True,
    ),
    "cross": Variant(
        lambda width, heads, head_width: CrossAttention(width, heads=heads, head_width=head_width),
        "one text attends to another, as a decoder does to its encoder",
        heads=1,
    ),
}


def explain(
    text: str,
    variant: str = "simple",
    *,
    memory: str | None = None,
    dim: int | None = None,
    heads: int | None = None,
    head_dim: int | None = None,
    head: int = 0,
    seed: int = 0,
    positions: bool = False,
) -> Explanation:
    """Explain a variant of attention on a text, with random weights drawn from a seed.

    The tokens are the words. At width 3, words of document 002 (after Raschka) have the vectors
    printed there. All other vectors are drawn from the seed and the word. All numbers are float64.

    Args:
        text: a text of one word or more.
        variant: a name in `VARIANTS`.
        memory: the text to attend to; required for "cross", invalid for other variants.
        dim: width of the tokens' vectors; default 128 for "projected", 4 for "multihead", and 3
            for other variants (4 with `positions`).
        heads: number of heads, for "multihead" (default 2) and "cross" (default 1).
        head_dim: width of each query, key and value; default dim / heads, but dim / 8 for
            "projected". Invalid for "simple".
        head: the head to show, from 0.
        seed: the seed of the random numbers.
        positions: add sinusoidal positions; requires an even width.

    Raises:
        TextError: a text without words.
        ArgumentError: an unknown variant or head, an invalid width, heads that do not divide
            `dim`, a missing `memory`, or an argument that the variant does not take.

    >>> scores = explain("Your journey starts with one step").stage("scores")
    >>> scores.part([1], range(6))
    tensor([[0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865]], dtype=torch.float64)
    """
    spec = _variant(variant, memory, heads, head_dim)
    head_count = (spec.heads or 1) if heads is None else heads
    default = 4 if positions and spec.width == 3 else spec.width
    width = default if dim is None else dim
    if width < 1:
        raise ArgumentError(f"dim {width}", expected="a width of 1 or more")
    check_index("head", head, head_count)
    tokens, memory_tokens = words(text), [] if memory is None else words(memory)
    layer = random_layer(lambda: spec.layer(width, head_count, head_dim), seed)
    table = {word: vector(word, width, seed) for word in dict.fromkeys([*tokens, *memory_tokens])}
    with torch.inference_mode():
        stages = _embed(tokens, "tokens", table, positions)
        sources = [stages[-1]]
        if memory_tokens:
            stages += _embed(memory_tokens, "memory", table, positions)
            sources.append(stages[-1])
        stages += attention_stages(layer, *sources, weights_note=WEIGHTS_NOTE, causal=spec.causal)
    if getattr(layer, "residual", False):
        stages += _with_residual(stages.pop(), sources[0])
    return Explanation(
        title=f"{variant}: {spec.description}",
        tokens=tuple(tokens),
        memory=tuple(memory_tokens),
        sections=(Section(variant, tuple(stages), "attention"),),
        notes=_notes(table, width, seed),
        heads=head_count,
        head=head,
    )


def vector(word: str, width: int, seed: int = 0) -> tuple[float, ...]:
    """Return a word's vector: the one that document 002 (after Raschka) prints, or a random one.

    A random vector depends only on the word, the width and the seed. Its numbers lie in [0, 1) and
    have two decimals, so that calculations can be checked by hand and repeated in JavaScript.

    >>> vector("journey", 3), vector("coffee", 3) == vector("coffee", 5)[:3]
    ((0.55, 0.87, 0.66), True)
    """
    if width == len(EMBEDDINGS[0]) and word in VECTORS_002:
        return VECTORS_002[word]
    start = hash32(f"{seed} {word}".encode())
    return tuple(
        mix32(start + step * 0x9E3779B9) % 100 / 100 for step in range(1, width + 1)
    )  # multiples of the golden ratio, as in SplitMix


def hash32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash (Fowler, Noll and Vo)."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def mix32(value: int) -> int:
    """Return a 32-bit hash of a number, by the last step of MurmurHash3 (Appleby)."""
    value &= 0xFFFFFFFF
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def random_layer(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a layer in float64 with normally distributed weights, rounded to two decimals.

    The standard deviation √(3 / width) gives queries and keys a variance of about 1, because the
    inputs, uniform in [0, 1], have a mean square of 1/3. So scores differ, but not too much.
    """
    with torch.random.fork_rng(devices=[]):
        layer = make().double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(std=math.sqrt(3 / weight.shape[-1]), generator=generator)
            weight.mul_(100).round_().div_(100).add_(0.0)  # no −0
    return layer


def _variant(name: str, memory: str | None, heads: int | None, head_dim: int | None) -> Variant:
    """Return the variant of a name; raise an `ArgumentError` for arguments that do not fit it."""
    if name not in VARIANTS:
        raise ArgumentError(f"variant {name!r}", expected=f"one of {', '.join(VARIANTS)}")
    variant = VARIANTS[name]
    if (name == "cross") != (memory is not None):
        raise ArgumentError(
            f"variant {name!r} {'without' if memory is None else 'with'} a second text",
            expected="a second text for the variant cross, and only for cross",
        )
    if variant.heads is None and heads not in (None, 1):
        raise ArgumentError(
            f"{heads} heads for the variant {name!r}",
            expected="one head",
            remedy="use multihead or cross for several heads",
        )
    if name == "simple" and head_dim is not None:
        raise ArgumentError(
            f"a head width of {head_dim} for the variant 'simple'",
            expected="no head width",
            cause="this variant has no weights: query, key and value are the embeddings",
        )
    return variant


def _embed(
    tokens: Sequence[str], rows: str, table: dict[str, tuple[float, ...]], positions: bool
) -> list[Stage]:
    """Return the stages of a text's vectors and, with `positions`, of positions and the sum."""
    x = torch.tensor([table[token] for token in tokens], dtype=torch.float64)
    width = x.shape[-1]
    name, prefix, subject = "embeddings", "", "Each"
    if rows == "memory":
        name, prefix = "memory", "memory "
        subject = "The second text, to which the first attends: each"
    sentence = (
        f"{subject} token becomes a vector of {width:,} number{'s'[: width != 1]} that does not "
        "depend on the token's position."
    )
    vectors = stored(name, x, f"{name} = table[token]", sentence, rows, kind=name,
                     rule="words")  # fmt: skip
    if not positions:
        return [vectors]
    sines = stored(
        f"{prefix}positions", sinusoidal(len(tokens), width).double(),
        "sin and cos of position / 10000^(2i/width)",
        "Sines and cosines of each token's position. They encode the order of the tokens.", rows,
        kind="positions", rule="sinusoids",
    )  # fmt: skip
    return [vectors, sines, sum_stage(f"{prefix}input", [vectors, sines], POSITION_SUM, "input")]


def _with_residual(output: Stage, source: Stage) -> list[Stage]:
    """Return the stages of a layer's projected context and of the residual sum."""
    formula = "projected = context · W_output"
    projected = dataclasses.replace(output, name="projected", formula=formula)
    sentence = (
        "The projected context plus the token's vector (residual sum): the vector of the token, "
        "changed by the tokens that it attends to."
    )
    return [projected, sum_stage("output", [projected, source], sentence)]


def _notes(table: dict[str, tuple[float, ...]], width: int, seed: int) -> tuple[str, ...]:
    printed = [word for word in table if width == len(EMBEDDINGS[0]) and word in VECTORS_002]
    origin = (
        f"random numbers, drawn from the seed {seed} and the word, so a word has the same vector "
        "in every text. No model has learned these numbers."
    )
    if not printed:
        return (f"The vectors are {origin}",)
    if len(printed) == len(table):
        return ("Document 002 (after Raschka) prints these vectors.",)
    return (
        f"Document 002 (after Raschka) prints the vectors of {', '.join(printed)}; the other "
        f"vectors are {origin}",
    )


# The text of document 004 (Zhang, *LLM: From Zero to Hero*), and the width of its model
TOKENS_004 = (
    ".", " By", " mastering", " the", " art", " of", " identifying", " underlying", " motivations",
    " and", " desires", ",", " we", " equip", " ourselves", " with",
)  # fmt: skip
WIDTH_004 = 64
# Scores of one head in section 4.3: the first three columns of the first three rows
SCORES_004 = ((0.2712, 0.5608, -0.4975), (-0.0456, 0.3352, -0.2611), (-0.0627, 0.1498, -0.3736))


def document_004() -> Explanation:
    """Explain the positions of document 004 (Zhang), and the steps from its scores to its weights.

    The steps from positions to scores cannot be repeated, because the document's random embeddings
    and projections are printed only in part. All numbers are float64.

    >>> document_004().stage("weights").part([2], range(3))
    tensor([[0.3368, 0.4165, 0.2468]], dtype=torch.float64)
    """
    scores = torch.tensor(SCORES_004, dtype=torch.float64)
    unit = torch.eye(len(SCORES_004), dtype=torch.float64)
    printed = stored(
        "scores", scores, "",
        "Scores of one head that document 004 prints, already divided by √16 = 4: the first three "
        "columns of the first three rows.", "tokens", columns="tokens",
    )  # fmt: skip
    vectors = stored("value", unit, "", "", "tokens")
    _, masked, weights, _ = attend(printed, vectors, vectors, causal=True, scale=1.0)
    masked = dataclasses.replace(masked, sources=(printed,))
    weights = dataclasses.replace(weights, sources=(masked,))
    positions = sinusoid_stage(sinusoidal(len(TOKENS_004), WIDTH_004).double(), "tokens")
    return Explanation(
        title="document 004: its printed numbers (Zhang, LLM: From Zero to Hero)",
        tokens=TOKENS_004,
        sections=(
            Section("Step 3: positions", (positions,)),
            Section("Steps 4.3 to 4.6: from scores to weights", (printed, masked, weights)),
        ),
        notes=("Document 004 (Zhang) prints this sentence and these scores.",),
    )
