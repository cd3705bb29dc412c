"""Names tokens: a printable label for each id, by the tokenizer of whoever wrote it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

from heedful.errors import ArgumentError

SIGNS = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}
SPACES = "Ġ▁"  # how byte-level BPE and SentencePiece write the space before a word


class Naming(NamedTuple):
    """How ids are named.

    pieces: gives a label for each of a list of ids.
    unknown: the id that stands for every word that the tokenizer does not know; None where there is
        none, or nothing tells it.
    """

    pieces: Callable[[list[int]], list[str]]
    unknown: int | None = None

    def __call__(self, ids: list[int]) -> list[str]:
        """A label for each id.

        Raises:
            ArgumentError: the tokenizer gave something else.
        """
        found = self.pieces(ids)
        made = list(found) if isinstance(found, list | tuple) else []
        if len(made) != len(ids) or not all(isinstance(label, str) for label in made):
            raise ArgumentError(
                f"a tokenizer that made {reprlib.repr(found)} of {len(ids)} ids",
                expected="a list of as many strings",
                remedy="as a function: lambda ids: [words[i] for i in ids]",
            )
        return made


def naming_of(tokenizer: Any) -> Naming:
    """How a tokenizer names its tokens.

    Args:
        tokenizer: one of heedful or of transformers, a processor that has one, what `heedful.open`
            gives, or a function from a list of ids to a list of strings, one for each by itself.

    Raises:
        ArgumentError: it is none of these.

    >>> naming_of(lambda ids: [f"<{i}>" for i in ids])([3, 1])
    ['<3>', '<1>']
    """
    if hasattr(tokenizer, "pieces"):
        return Naming(tokenizer.pieces, _unknown(tokenizer))
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return Naming(lambda ids: [piece(tokenizer, one) for one in ids], _unknown(tokenizer))
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is not None:  # a processor's
        return naming_of(inner)
    if callable(tokenizer) and not isinstance(tokenizer, type):
        return Naming(tokenizer)
    raise ArgumentError(
        f"a tokenizer of type {type(tokenizer).__name__}",
        expected="one of heedful or of transformers, or a function from ids to strings",
        remedy="tokenizer=lambda ids: [words[i] for i in ids]",
    )


def _unknown(tokenizer: Any) -> int | None:
    """The id of unknown words: of ours by its role, of transformers' by its name, or one inside."""
    if hasattr(tokenizer, "special"):
        return tokenizer.special.get("unk")
    if hasattr(tokenizer, "unk_token_id"):
        return tokenizer.unk_token_id
    inner = getattr(tokenizer, "tokenizer", None)
    return None if inner is None else _unknown(inner)


def piece(tokenizer: Any, token: int) -> str:
    """One label for a token of a tokenizer of transformers, as our own tokenizers give them."""
    known = tokenizer.convert_ids_to_tokens(token)
    if known is None:  # a row that a model has beyond its vocabulary
        return f"id {token}"
    name, text = str(known), str(tokenizer.decode([token]))
    spaces = len(name) - len(name.lstrip(SPACES))
    if spaces:  # some decoders leave out the first
        text = " " * spaces + text.lstrip(f" {SPACES}")
    if not text or "\ufffd" in text:  # part of a character, or nothing by itself
        return name
    return "".join(SIGNS.get(char, char) for char in text)
