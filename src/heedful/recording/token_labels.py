"""The names of tokens, set by the user for each sequence of the batch, or made by a tokenizer.

An encoder–decoder has two texts: the encoder reads the source, the decoder reads and writes the
target. If a module's name contains neither "encoder" nor "decoder", only ids name its tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.recording.capture import Capture
from heedful.recording.module_names import side_of
from heedful.token_names import Labeller

UNKNOWN = ("[UNK]", "<unk>")  # tokenizers' names of unknown words
MAX_LENGTHS = 5  # the maximum number of lengths in an error message


@dataclass
class Texts:
    """The names of the tokens of every sequence.

    source, target: the names that the user set, a list for each sequence; None if not set.
    naming: a tokenizer's function from ids to names. names: the known names, by id.
    unknown: the id of unknown words. recording_ref: returns the recording, or None once deleted.
    """

    source: list[list[str]] | None = None
    target: list[list[str]] | None = None
    naming: Labeller | None = None
    names: dict[int, str] = field(default_factory=dict)
    unknown: int | None = None
    recording_ref: Callable[[], Any] = field(default=lambda: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.naming is not None:
            self.unknown = self.naming.unknown

    def names_of(self, ids: Tensor | None) -> list[str] | None:
        """Return the names of ids; None if some have no name and there is no tokenizer."""
        if ids is None or not self.name_ids(ids):
            return None
        return [self.names[number] for number in ids.tolist()]

    def name_ids(self, ids: Tensor) -> bool:
        """Name the ids that have no name yet; return whether all ids have names now."""
        missing = [number for number in ids.unique().tolist() if number not in self.names]
        if missing and self.naming is not None:
            self.names |= zip(missing, self.naming(missing), strict=True)
            missing = []
        return not missing

    def side(self, is_target: bool) -> list[list[str]] | None:
        """Return the names that were set for one side."""
        return self.target if is_target else self.source


def name_ids(texts: Texts, captures: list[Capture]) -> None:
    """Name all ids of some calls, if there is a tokenizer."""
    tables = [ids for capture in captures for ids in (capture.ids, capture.query_ids)]
    distinct = {(ids.data_ptr(), ids.shape): ids for ids in tables if ids is not None}
    for ids in distinct.values():  # layers share their ids
        texts.name_ids(ids)


class Sides:
    """The source and the target of one sequence: their ids, and which modules read them."""

    def __init__(self, captures: list[Capture], sequence: int) -> None:
        self.captures, self.sequence = captures, sequence
        self.has_cross = any(capture.kind == "cross" for capture in captures)
        self.has_encoder = any(side_of(capture.name) == "encoder" for capture in captures)
        self._ids: dict[bool, Tensor | None] = {}

    def is_target(self, name: str) -> bool | None:
        """Return whether a module reads the target, by the module's name; None if unknown."""
        if not self.has_cross:
            return False
        side = side_of(name, self.has_encoder)
        return None if side is None else side == "decoder"

    def ids(self, is_target: bool) -> Tensor | None:
        """Return the ids of the source or the target, (T,), over all passes; None if unknown.

        If there are several texts, as in two models side by side, return the first.
        """
        if is_target not in self._ids:
            text: Tensor | None = None
            for capture in self.captures:
                is_side = capture.kind != "cross" and self.is_target(capture.name) is is_target
                if is_side and capture.has_sequence(self.sequence):
                    ids = capture.key_ids(self.sequence)
                    if text is None or (ids is not None and _continues(text, ids)):
                        text = ids
            self._ids[is_target] = text
        return self._ids[is_target]


def _continues(text: Tensor, ids: Tensor) -> bool:
    return len(ids) > len(text) and torch.equal(ids[: len(text)], text)


def set_text(
    texts: Texts, is_target: bool | None, sequence: int, ids: Tensor | None, sides: Sides,
    length: int,
) -> list[str] | None:  # fmt: skip
    """Return the names that the user set for one axis of a call; None if they do not fit it.

    `is_target` is whether the axis is the target, if known; `ids` (length,) are its ids, if known.
    """
    names = None if is_target is None else texts.side(is_target)
    if is_target is None or names is None or sequence >= len(names):
        return None
    text, text_ids = names[sequence], sides.ids(is_target)
    if text_ids is None or ids is None:  # if both are unknown, lengths can be compared
        return text if text_ids is ids and len(text) == length else None
    shared = min(len(text_ids), length)
    if not torch.equal(ids[:shared], text_ids[:shared]):
        return None
    if len(text) == length:  # a generation may be longer than the ids of its passes
        return text
    return text[:length] if len(text) == len(text_ids) > length else None


def unknown_of(texts: Texts, ids: Tensor | None, names: list[str] | None) -> int | None:
    """Return the id of unknown words, from the tokenizer or from a token named as in `UNKNOWN`."""
    if texts.unknown is not None or ids is None or names is None:
        return texts.unknown
    return next((int(i) for i, name in zip(ids, names, strict=True) if name in UNKNOWN), None)


def check_texts(texts: list[list[str]] | None, captures: list[Capture], is_target: bool) -> None:
    """Raise an ArgumentError if the number or the lengths of texts differ from those recorded."""
    if texts is None or not captures:
        return
    if is_target and not Sides(captures, 0).has_cross:
        raise ArgumentError(
            "target_tokens for a model with one text",
            expected="only `tokens`, since only an encoder–decoder has a target",
        )
    counts = {capture.texts for capture in captures}
    if len(texts) not in counts:
        raise ArgumentError(
            f"tokens of {len(texts)} sequences",
            expected=f"of {_listed(counts)}, as many as were recorded",
        )
    for sequence, text in enumerate(texts):
        lengths = _lengths(captures, sequence, is_target)
        if lengths and len(text) not in lengths:  # a text without a call has no known length
            raise ArgumentError(
                f"{len(text)} tokens of sequence {sequence}",
                expected=f"{_listed(lengths)}, as many as were recorded",
                cause="another text, an extra token at its end, or padding, which is not recorded",
            )


def _lengths(captures: list[Capture], sequence: int, is_target: bool) -> set[int]:
    """Return the possible lengths of the source or the target: of one pass, or of all passes."""
    sides, lengths = Sides(captures, sequence), set()
    totals: Counter[str] = Counter()
    for capture in captures:
        if not capture.has_sequence(sequence):
            continue
        real, name = capture.real(sequence), capture.name
        if capture.kind == "cross":
            lengths.add(len(real.queries if is_target else real.keys))
            if is_target:
                totals[name] += len(real.queries)
        elif sides.is_target(name) is not (not is_target):
            lengths.add(len(real.keys))
            totals[name] += len(real.queries)
    return lengths | set(totals.values())


def _listed(numbers: set[int]) -> str:
    *first, last = (f"{number}" for number in sorted(numbers)[-MAX_LENGTHS:])
    return f"{', '.join(first)} or {last}" if first else last
