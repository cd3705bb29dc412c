"""Masked-word prediction: a BERT's likeliest words for each [MASK] in a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from heedful.errors import ArgumentError, TextError
from heedful.models import Bert
from heedful.models.checks import check_logits
from heedful.text import RobertaTokenizer, WordPieceTokenizer


class Guess(NamedTuple):
    """A word for a [MASK], and its probability among all words."""

    word: str
    id: int
    probability: float


class Gap(NamedTuple):
    """A [MASK]: its position among the tokens, and the likeliest words, likeliest first."""

    position: int
    guesses: tuple[Guess, ...]


BertTokenizer: TypeAlias = WordPieceTokenizer | RobertaTokenizer


@torch.inference_mode()
def fill(
    model: Bert, tokenizer: BertTokenizer, text: str, second: str | None = None, *, count: int = 5
) -> list[Gap]:
    """Return the likeliest words for each [MASK].

    Each [MASK] is predicted while all others stay masked, as in the training of BERT. So the words
    predicted for two masks may not fit each other.

    Args:
        model: a BERT with a masked-word head, in evaluation mode.
        tokenizer: the model's tokenizer.
        text: a text with one [MASK] or more.
        second: a second text, for a pair; it may have masks too.
        count: the number of words for each [MASK].

    Raises:
        TextError: the texts have no [MASK].
        ArgumentError: the model has no masked-word head, or the texts have more tokens than the
            model's context.
    """
    mask = _mask(model, tokenizer)
    ids, segments = tokenizer.inputs(text, second)
    positions = [n for n, token in enumerate(ids) if token == mask]
    if not positions:
        [word] = tokenizer.pieces([mask])
        raise TextError(
            f"no {word} in the text",
            expected="one or more, in place of words to predict",
            remedy=f"write for example: The capital of France is {word}.",
        )
    device = model.positions.device
    states = model.hidden_states(
        torch.tensor([ids], device=device), segments=torch.tensor([segments], device=device)
    )
    # only at the masks, because a row of logits is as wide as the vocabulary
    likely = check_logits(model.head(states[-1][0, positions])).softmax(-1)  # type: ignore[misc]
    top = likely.topk(min(count, likely.shape[-1]))
    return [
        Gap(position, tuple(map(Guess, tokenizer.pieces(tokens), tokens, probabilities)))
        for position, tokens, probabilities in zip(
            positions, top.indices.tolist(), top.values.tolist(), strict=True
        )
    ]


def filled(tokenizer: BertTokenizer, texts: Sequence[str], gaps: Sequence[Gap]) -> list[str]:
    """Return the texts passed to `fill` with the likeliest word in place of each [MASK]."""
    mask = tokenizer.decode([tokenizer.special["mask"]])
    gap_iterator = iter(gaps)
    lines = []
    for text in texts:
        line, *parts = text.split(mask)
        for part in parts:
            line = tokenizer.append_token(line, next(gap_iterator).guesses[0].id) + part
        lines.append(line)
    return lines


def _mask(model: Bert, tokenizer: BertTokenizer) -> int:
    """Return the id of [MASK]; raise an `ArgumentError` if the model cannot predict masks."""
    if model.head is None:
        raise ArgumentError(
            "a BERT without a masked-word head",
            expected="a BERT with this head",
            cause="a checkpoint of the bare model (BertModel)",
            remedy="use a checkpoint of BertForMaskedLM or BertForPreTraining",
        )
    return tokenizer.special["mask"]
