"""The names of tokens: set for each sequence, or computed from ids by a tokenizer.

An encoder–decoder has two texts: the source, read by the encoder, and the target, read and written
by the decoder. If a module's name contains neither word, only ids determine its tokens.
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
MOST_LENGTHS = 5  # in an error message


@dataclass
class Texts:
    """The names of the tokens of every sequence.

    source, target: the names that were set, a list for each sequence; None if none were.
    naming: maps ids to names. names: the names so far, by id. unknown: the id of unknown words.
    recording_ref: returns the recording, or None once it is deleted.
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

    def of_ids(self, ids: Tensor | None) -> list[str] | None:
        """Return the names of ids; None without a tokenizer."""
        if ids is None or not self.name_ids(ids):
            return None
        return [self.names[number] for number in ids.tolist()]

    def name_ids(self, ids: Tensor) -> bool:
        """Name ids that have no name yet; return whether all ids now have one."""
        missing = [number for number in ids.unique().tolist() if number not in self.names]
        if missing and self.naming is not None:
            self.names |= zip(missing, self.naming(missing), strict=True)
            missing = []
        return not missing

    def side(self, is_target: bool) -> list[list[str]] | None:
        """Return the names that were set for one side."""
        return self.target if is_target else self.source


def name_ids(texts: Texts, captures: list[Capture]) -> None:
    """Name every id of some calls, if there is a tokenizer."""
    tables = [each for capture in captures for each in (capture.ids, capture.query_ids)]
    distinct = {(ids.data_ptr(), ids.shape): ids for ids in tables if ids is not None}
    for ids in distinct.values():  # layers share their ids
        texts.name_ids(ids)


class Sides:
    """The source and the target of one sequence: which calls are on them, and their ids."""

    def __init__(self, captures: list[Capture], sequence: int) -> None:
        self.captures, self.sequence = captures, sequence
        self.has_cross = any(capture.kind == "cross" for capture in captures)
        self.has_encoder = any(side_of(capture.name) == "encoder" for capture in captures)
        self._ids: dict[bool, Tensor | None] = {}

    def is_target(self, name: str) -> bool | None:
        """Return whether a module is in the decoder; None if its name does not show it."""
        if not self.has_cross:
            return False
        side = side_of(name, self.has_encoder)
        return None if side is None else side == "decoder"

    def ids(self, is_target: bool) -> Tensor | None:
        """Return the known ids of one side's text, (T,), extended by later passes.

        If there are several texts, as in two models side by side, it is the first.
        """
        if is_target not in self._ids:
            text: Tensor | None = None
            for capture in self.captures:
                is_side = capture.kind != "cross" and self.is_target(capture.name) is is_target
                if is_side and capture.has(self.sequence):
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
    """Return the names that were set for one axis of a call; None if they do not fit.

    `is_target` is the side of the axis, None if unknown; `ids` (length,) are its ids, if known.
    """
    several = None if is_target is None else texts.side(is_target)
    if is_target is None or several is None or sequence >= len(several):
        return None
    text, text_ids = several[sequence], sides.ids(is_target)
    if text_ids is None or ids is None:  # only lengths can be compared
        return text if text_ids is ids and len(text) == length else None
    both = min(len(text_ids), length)
    if not torch.equal(ids[:both], text_ids[:both]):
        return None
    if len(text) == length:  # a generation may be longer than the ids of its passes
        return text
    return text[:length] if len(text) == len(text_ids) > length else None


def unknown_of(texts: Texts, ids: Tensor | None, names: list[str] | None) -> int | None:
    """Return the id of unknown words, from the tokenizer or from a token with such a name."""
    if texts.unknown is not None or ids is None or names is None:
        return texts.unknown
    return next((int(i) for i, name in zip(ids, names, strict=True) if name in UNKNOWN), None)


def check_texts(texts: list[list[str]] | None, captures: list[Capture], is_target: bool) -> None:
    """Raise an ArgumentError if the number or the lengths of texts differ from the sequences."""
    if texts is None or not captures:
        return
    if is_target and not Sides(captures, 0).has_cross:
        raise ArgumentError(
            "target_tokens for a model with one text",
            expected="tokens; target_tokens is for encoder–decoders",
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
                cause="another text, an extra token at its end, or padding, which is left out",
            )


def _lengths(captures: list[Capture], sequence: int, is_target: bool) -> set[int]:
    """Return the possible numbers of tokens of one side: those of a pass, and of all passes."""
    sides, lengths = Sides(captures, sequence), set()
    totals: Counter[str] = Counter()
    for capture in captures:
        if not capture.has(sequence):
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
    *others, last = (f"{number}" for number in sorted(numbers)[-MOST_LENGTHS:])
    return f"{', '.join(others)} or {last}" if others else last
