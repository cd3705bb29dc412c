"""Explanations of attention without a model: variants on any text, and document 004's numbers."""

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
from heedful.explain.stage_types import Explanation, Section, Stage, check_index, stored
from heedful.layers import (
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    SelfAttention,
    SimpleSelfAttention,
)
from heedful.ops.positions import sinusoidal
from heedful.text.example_texts import EMBEDDINGS, SENTENCE
from heedful.text.words import words

TABLES = (
    "The weights that turn each token's vector into a query, a key and a value. A model learns "
    "them; here they are random numbers, drawn from the seed."
)
DOCUMENT = dict(zip(SENTENCE.split(), EMBEDDINGS, strict=True))


class Variant(NamedTuple):
    """A variant of attention: its layer, built from (width, heads, head width), and defaults."""

    layer: Callable[[int, int, int | None], nn.Module]
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
        "narrow queries, keys and values, projected back and added (document 001, Pahwa)",
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

    The tokens are the words. At width 3, the words of document 002 have its vectors. Every other
    vector is drawn from the seed and the word. Everything is computed in float64.

    Args:
        text: any text.
        variant: a name in `VARIANTS`.
        memory: the text to attend to, for "cross" only.
        dim: width of the tokens' vectors; default 3, 4 for "multihead", 128 for "projected".
        heads: number of heads, for "multihead" (default 2) and "cross" (default 1).
        head_dim: width of each query, key and value; default dim / heads, and dim / 8 for
            "projected".
        head: the head to show, from 0.
        seed: the seed of the random numbers.
        positions: add sinusoidal positions; requires an even width.

    Raises:
        TextError: a text without words.
        ArgumentError: an unknown variant or head, an invalid width, heads that do not divide
            `dim`, or an argument that the variant does not take.

    >>> scores = explain("Your journey starts with one step").stage("scores")
    >>> scores.part([1], range(6))
    tensor([[0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865]], dtype=torch.float64)
    """
    kind = _variant(variant, memory, heads, head_dim)
    number = (kind.heads or 1) if heads is None else heads
    default = 4 if positions and kind.width == 3 else kind.width
    width = default if dim is None else dim
    if width < 1:
        raise ArgumentError(f"dim {width}", expected="a width of 1 or more")
    check_index("head", head, number)
    tokens, others = words(text), [] if memory is None else words(memory)
    layer = drawn(lambda: kind.layer(width, number, head_dim), seed)
    table = {word: vector(word, width, seed) for word in dict.fromkeys([*tokens, *others])}
    with torch.inference_mode():
        stages = _embed(tokens, "tokens", table, positions)
        sources = [stages[-1]]
        if others:
            stages += _embed(others, "memory", table, positions)
            sources.append(stages[-1])
        stages += attention_stages(layer, *sources, tables=TABLES, causal=kind.causal)
    if getattr(layer, "residual", False):
        stages += _with_residual(stages.pop(), sources[0])
    return Explanation(
        title=f"{variant}: {kind.description}",
        tokens=tuple(tokens),
        memory=tuple(others),
        sections=(Section(variant, tuple(stages), "attention"),),
        notes=_notes(table, width, seed),
        heads=number,
        head=head,
    )


def vector(word: str, width: int, seed: int = 0) -> tuple[float, ...]:
    """Return a word's vector: from document 002 if it has one, else random, each number in [0, 1].

    It depends only on the word, the width and the seed, not on the position. Numbers have two
    decimals, so that they can be followed by hand and computed identically in JavaScript.

    >>> vector("journey", 3), vector("coffee", 3) == vector("coffee", 5)[:3]
    ((0.55, 0.87, 0.66), True)
    """
    if width == len(EMBEDDINGS[0]) and word in DOCUMENT:
        return DOCUMENT[word]
    start = hash32(f"{seed} {word}".encode())
    return tuple(
        mix32(start + step * 0x9E3779B9) % 100 / 100 for step in range(1, width + 1)
    )  # steps of the golden ratio, as in SplitMix


def hash32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash (Fowler, Noll and Vo)."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def mix32(value: int) -> int:
    """Mix all bits of a number into 32 bits, by the last step of MurmurHash3 (Appleby)."""
    value &= 0xFFFFFFFF
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def drawn(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a layer in float64 with normally distributed weights, rounded to two decimals.

    The standard deviation keeps scores neither nearly equal nor far apart: uniform numbers in
    [0, 1] have a mean square of 1/3.
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
    if name not in VARIANTS:
        raise ArgumentError(f"variant {name!r}", expected=f"one of {', '.join(VARIANTS)}")
    kind = VARIANTS[name]
    if (name == "cross") != (memory is not None):
        raise ArgumentError(
            f"variant {name!r} {'without' if memory is None else 'with'} a second text",
            expected="a second text for the variant cross, and only for it",
        )
    if kind.heads is None and heads not in (None, 1):
        raise ArgumentError(
            f"{heads} heads for the variant {name!r}",
            expected="one head",
            remedy="use multihead or cross for several heads",
        )
    if name == "simple" and head_dim is not None:
        raise ArgumentError(
            f"a head width of {head_dim} for the variant 'simple'",
            expected="none",
            cause="it has no weights: query, key and value are the embeddings",
        )
    return kind


def _embed(
    tokens: Sequence[str], rows: str, table: dict[str, tuple[float, ...]], positions: bool
) -> list[Stage]:
    """Return the stages of one text's vectors, and if requested of its positions and their sum."""
    x = torch.tensor([table[token] for token in tokens], dtype=torch.float64)
    width = x.shape[-1]
    name, before, subject = "embeddings", "", "Each"
    if rows == "memory":
        name, before = "memory", "memory "
        subject = "The second text, to which the first attends: each"
    sentence = (
        f"{subject} token becomes a vector of {width:,} number{'s'[: width != 1]}, the same "
        "at every position."
    )
    vectors = stored(name, x, f"{name} = table[token]", sentence, rows, kind=name)
    if not positions:
        return [vectors]
    sines = stored(
        f"{before}positions", sinusoidal(len(tokens), width).double(),
        "sin and cos of position / 10000^(2i/width)",
        "Sines and cosines of each token's position: they encode the order.", rows,
        kind="positions",
    )  # fmt: skip
    return [vectors, sines, sum_stage(f"{before}input", [vectors, sines], POSITION_SUM, "input")]


def _with_residual(output: Stage, source: Stage) -> list[Stage]:
    """Return the stages of a layer's projected output and of its residual sum."""
    formula = "projected = context · W_output"
    projected = dataclasses.replace(output, name="projected", formula=formula)
    sentence = (
        "The projected context plus the token's own vector (residual sum): the vector as before, "
        "refined by the tokens that it attended to."
    )
    return [projected, sum_stage("output", [projected, source], sentence)]


def _notes(table: dict[str, tuple[float, ...]], width: int, seed: int) -> tuple[str, ...]:
    printed = [word for word in table if width == len(EMBEDDINGS[0]) and word in DOCUMENT]
    rest = (
        f"random, drawn from the seed {seed} and the word: a word has the same vector in every "
        "text. No model has learned them."
    )
    if not printed:
        return (f"The vectors are {rest}",)
    if len(printed) == len(table):
        return ("The vectors are the ones that document 002 prints.",)
    return (f"Document 002 prints the vectors of {', '.join(printed)}; the others are {rest}",)


# Document 004 (Zhang, *LLM: From Zero to Hero*)
TOKENS = (
    ".", " By", " mastering", " the", " art", " of", " identifying", " underlying", " motivations",
    " and", " desires", ",", " we", " equip", " ourselves", " with",
)  # fmt: skip
WIDTH = 64
# Its section 4.3: the first three columns of the first three rows of one head
SCORES = ((0.2712, 0.5608, -0.4975), (-0.0456, 0.3352, -0.2611), (-0.0627, 0.1498, -0.3736))


def document_004() -> Explanation:
    """Explain document 004's table of positions, and its scores up to the weights, in float64.

    The document's embeddings and projections are random and printed only in part, so the steps
    between them cannot be computed again.

    >>> document_004().stage("weights").part([2], range(3))
    tensor([[0.3368, 0.4165, 0.2468]], dtype=torch.float64)
    """
    scores = torch.tensor(SCORES, dtype=torch.float64)
    unit = torch.eye(len(SCORES), dtype=torch.float64)
    printed = stored(
        "scores", scores, "",
        "The scores that document 004 prints for one head, already divided by √16 = 4: the first "
        "three columns of the first three rows.", "tokens", columns="tokens",
    )  # fmt: skip
    vectors = stored("value", unit, "", "", "tokens")
    _, masked, weights, _ = attend(printed, vectors, vectors, causal=True, scale=1.0)
    masked = dataclasses.replace(masked, sources=(printed,))
    weights = dataclasses.replace(weights, sources=(masked,))
    positions = sinusoid_stage(sinusoidal(len(TOKENS), WIDTH).double(), "tokens")
    return Explanation(
        title="document 004: its printed numbers (Zhang, LLM: From Zero to Hero)",
        tokens=TOKENS,
        sections=(
            Section("Step 3: positions", (positions,)),
            Section("Steps 4.3 to 4.6: from scores to weights", (printed, masked, weights)),
        ),
        notes=("The sentence and the scores are the ones that document 004 prints.",),
    )
