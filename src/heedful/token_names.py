"""Printable labels of tokens, from a tokenizer of heedful or transformers, or from a function."""

from __future__ import annotations

import functools
import reprlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from heedful.errors import ArgumentError

SIGNS = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}  # white space → its visible sign
DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
SPACES = "Ġ▁"  # the space before a word in byte-level BPE and in SentencePiece


class Labeller(NamedTuple):
    """A function from ids to labels.

    pieces: returns a label for each id of a list.
    unknown: the id of the unknown token; None if the tokenizer has none or does not report it.
    """

    pieces: Callable[[list[int]], list[str]]
    unknown: int | None = None

    def __call__(self, ids: list[int]) -> list[str]:
        """Return a label for each id.

        Raises:
            ArgumentError: the tokenizer did not return a list with one string per id.
        """
        result = self.pieces(ids)
        labels = list(result) if isinstance(result, list | tuple) else []
        if len(labels) != len(ids) or not all(isinstance(label, str) for label in labels):
            raise ArgumentError(
                f"a tokenizer that returned {reprlib.repr(result)} for {len(ids)} ids",
                expected="a list with one string per id",
                remedy="pass a function such as lambda ids: [words[i] for i in ids]",
            )
        return labels


@functools.lru_cache(maxsize=8)
def distinct(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Append the position, in small digits, to each token that occurs several times.

    >>> distinct(("the", "cat", "the"))
    ('the₀', 'cat', 'the₂')
    """
    counts = Counter(tokens)
    return tuple(
        token + str(i).translate(DIGITS) if counts[token] > 1 else token
        for i, token in enumerate(tokens)
    )


def token_labeller(tokenizer: Any) -> Labeller:
    """Return the labelling function of a tokenizer.

    Args:
        tokenizer: a tokenizer of heedful or transformers, a processor that has a tokenizer, the
            result of `heedful.open`, or a function from a list of ids to a list of strings.

    Raises:
        ArgumentError: the tokenizer is none of these.

    >>> token_labeller(lambda ids: [f"<{i}>" for i in ids])([3, 1])
    ['<3>', '<1>']
    """
    if hasattr(tokenizer, "pieces"):
        return Labeller(tokenizer.pieces, _unknown(tokenizer))
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return Labeller(lambda ids: [piece(tokenizer, id) for id in ids], _unknown(tokenizer))
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is not None:  # the tokenizer of a processor
        return token_labeller(inner)
    if callable(tokenizer) and not isinstance(tokenizer, type):
        return Labeller(tokenizer)
    raise ArgumentError(
        f"a tokenizer of type {type(tokenizer).__name__}",
        expected="a tokenizer of heedful or transformers, or a function from ids to strings",
        remedy="tokenizer=lambda ids: [words[i] for i in ids]",
    )


def _unknown(tokenizer: Any) -> int | None:
    """Return the id of the unknown token of a tokenizer, or of the tokenizer in a processor."""
    if hasattr(tokenizer, "special"):
        return tokenizer.special.get("unk")
    if hasattr(tokenizer, "unk_token_id"):
        return tokenizer.unk_token_id
    inner = getattr(tokenizer, "tokenizer", None)
    return None if inner is None else _unknown(inner)


def piece(tokenizer: Any, token: int) -> str:
    """Return the label of a token of transformers, in the style of heedful's labels."""
    converted = tokenizer.convert_ids_to_tokens(token)
    if converted is None:  # an embedding row beyond the vocabulary
        return f"id {token}"
    name, text = str(converted), str(tokenizer.decode([token]))
    spaces = len(name) - len(name.lstrip(SPACES))
    if spaces:  # some decoders leave out the first space
        text = " " * spaces + text.lstrip(f" {SPACES}")
    if not text or "\ufffd" in text:  # part of a character, or a token without text
        return name
    return "".join(SIGNS.get(char, char) for char in text)
