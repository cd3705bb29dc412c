"""Filling gaps: the likeliest words for each [MASK] of a text, as a BERT has learned to guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from heedful.errors import ArgumentError, TextError
from heedful.models import Bert
from heedful.text import FramedTokenizer, WordPieceTokenizer


class Guess(NamedTuple):
    """A word for a gap, and its probability among all words."""

    word: str
    id: int
    probability: float


class Gap(NamedTuple):
    """A [MASK]: its position among the tokens, and words for it, the likeliest first."""

    position: int
    guesses: tuple[Guess, ...]


Framing: TypeAlias = WordPieceTokenizer | FramedTokenizer  # what a BERT's text is read by


@torch.inference_mode()
def fill(
    model: Bert, tokenizer: Framing, text: str, second: str | None = None, *, count: int = 5
) -> list[Gap]:
    """The likeliest words for each [MASK].

    Each gap is guessed with the others left open, as BERT was trained; two gaps side by side may
    get words that do not fit each other.

    Args:
        model: one with a masked-word head, in evaluation mode.
        tokenizer: the model's.
        text: with one [MASK] or more.
        second: a second text, for a pair; it may have masks too.
        count: words for each gap.

    Raises:
        TextError: no [MASK] in the text.
        ArgumentError: a model without the head, a tokenizer without the token, or more tokens than
            the model's context.
    """
    mask = _mask(model, tokenizer)
    ids, segments = tokenizer.inputs(text, second)
    positions = [n for n, token in enumerate(ids) if token == mask]
    if not positions:
        [word] = tokenizer.pieces([mask])
        raise TextError(
            f"no {word} in the text",
            expected="one or more, where a word is to be found",
            remedy=f"write it just so: The capital of France is {word}.",
        )
    device = model.positions.device
    states = model.hidden_states(
        torch.tensor([ids], device=device), segments=torch.tensor([segments], device=device)
    )
    # the head is made for the gaps alone: it is as wide as the vocabulary
    likely = model.head(states[-1][0, positions]).float().softmax(-1)  # type: ignore[misc]
    top = likely.topk(min(count, likely.shape[-1]))
    return [
        Gap(position, tuple(map(Guess, tokenizer.pieces(tokens), tokens, probabilities)))
        for position, tokens, probabilities in zip(
            positions, top.indices.tolist(), top.values.tolist(), strict=True
        )
    ]


def filled(tokenizer: Framing, texts: Sequence[str], gaps: Sequence[Gap]) -> list[str]:
    """The texts that `fill` was given, with the likeliest word in each gap."""
    mask = tokenizer.decode([tokenizer.special["mask"]])
    words = iter(gaps)
    lines = []
    for text in texts:
        line, *rest = text.split(mask)
        for part in rest:
            line = tokenizer.joined(line, next(words).guesses[0].id) + part
        lines.append(line)
    return lines


def _mask(model: Bert, tokenizer: Framing) -> int:
    """The id of [MASK], where model and tokenizer can fill it."""
    if model.head is None:
        raise ArgumentError(
            "a BERT without a head for masked words",
            expected="one with it",
            cause="a checkpoint of the bare model (BertModel)",
            remedy="take one of BertForMaskedLM or BertForPreTraining",
        )
    if "mask" not in tokenizer.special:
        raise ArgumentError(
            "a tokenizer without [MASK]", expected="it among the special tokens of BERT's tokenizer"
        )
    return tokenizer.special["mask"]
