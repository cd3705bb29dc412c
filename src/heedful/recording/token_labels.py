"""The names of tokens: those that were set for each sequence, or those that a tokenizer gives ids.

An encoder–decoder has two texts: `read`, the encoder's, and `written`, the decoder's. Of calls that
are of neither side by the name of their module, only the ids can tell the tokens.
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
from heedful.token_names import Naming

UNKNOWN = ("[UNK]", "<unk>")  # what tokenizers call a word that they do not know
SOME = 5  # lengths that an error names


@dataclass
class Texts:
    """The names of the tokens of every sequence.

    read, written: as they were set, a list for each sequence; None where they were not.
    naming: how ids are named; names: those that were. unknown: the id of unknown words.
    home: gives the recording, as long as somebody holds it.
    """

    read: list[list[str]] | None = None
    written: list[list[str]] | None = None
    naming: Naming | None = None
    names: dict[int, str] = field(default_factory=dict)
    unknown: int | None = None
    home: Callable[[], Any] = field(default=lambda: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.naming is not None:
            self.unknown = self.naming.unknown

    def of_ids(self, ids: Tensor | None) -> list[str] | None:
        """The names of ids; None where no tokenizer is known."""
        if ids is None or not self.learn(ids):
            return None
        return [self.names[number] for number in ids.tolist()]

    def learn(self, ids: Tensor) -> bool:
        """Name ids that have no name yet; whether all have one then."""
        missing = [number for number in ids.unique().tolist() if number not in self.names]
        if missing and self.naming is not None:
            self.names |= zip(missing, self.naming(missing), strict=True)
            missing = []
        return not missing

    def side(self, writes: bool) -> list[list[str]] | None:
        """What was set of one side."""
        return self.written if writes else self.read


def learn(texts: Texts, captures: list[Capture]) -> None:
    """Name every id of some calls, as far as a tokenizer is known."""
    several = [ids for of in captures for ids in (of.ids, of.query_ids) if ids is not None]
    for ids in {(ids.data_ptr(), ids.shape): ids for ids in several}.values():  # layers share them
        texts.learn(ids)


class Sides:
    """Which side of a model the calls of one sequence are of, and the ids of each side's text."""

    def __init__(self, captures: list[Capture], sequence: int) -> None:
        self.captures, self.sequence = captures, sequence
        self.crosses = any(capture.kind == "cross" for capture in captures)
        self.has_encoder = any(side_of(capture.name) == "encoder" for capture in captures)
        self._ids: dict[bool, Tensor | None] = {}

    def writes(self, name: str) -> bool | None:
        """Whether a module is of the decoder; None where its name does not say it."""
        if not self.crosses:
            return False
        side = side_of(name, self.has_encoder)
        return None if side is None else side == "decoder"

    def ids(self, writes: bool) -> Tensor | None:
        """The text of one side, (T,), as far as its ids are known, with what later passes add.

        Of several texts it is the first one: two models may stand side by side.
        """
        if writes not in self._ids:
            known: Tensor | None = None
            for capture in self.captures:
                is_of_it = capture.kind != "cross" and self.writes(capture.name) is writes
                if is_of_it and capture.has(self.sequence):
                    ids = capture.key_ids(self.sequence)
                    if known is None or (ids is not None and _goes_on(known, ids)):
                        known = ids
            self._ids[writes] = known
        return self._ids[writes]


def _goes_on(text: Tensor, ids: Tensor) -> bool:
    return len(ids) > len(text) and torch.equal(ids[: len(text)], text)


def set_text(
    texts: Texts, writes: bool | None, sequence: int, ids: Tensor | None, sides: Sides, length: int
) -> list[str] | None:
    """The tokens of one axis of a call by what was set; None where that does not fit.

    `writes` says of which side the axis is, None where that is not known; `ids` (length,) are its
    ids, where they are known.
    """
    several = None if writes is None else texts.side(writes)
    if writes is None or several is None or sequence >= len(several):
        return None
    text, whole = several[sequence], sides.ids(writes)
    if whole is None or ids is None:  # equal lengths are all that is known
        return text if whole is ids and len(text) == length else None
    both = min(len(whole), length)
    if not torch.equal(ids[:both], whole[:both]):
        return None
    if len(text) == length:  # a generation goes on from the ids that its passes have
        return text
    return text[:length] if len(text) == len(whole) > length else None


def unknown_of(texts: Texts, ids: Tensor | None, names: list[str] | None) -> int | None:
    """The id of unknown words: as the tokenizer told it, else that of a token with such a name."""
    if texts.unknown is not None or ids is None or names is None:
        return texts.unknown
    return next((int(i) for i, name in zip(ids, names, strict=True) if name in UNKNOWN), None)


def check_texts(given: list[list[str]] | None, captures: list[Capture], writes: bool) -> None:
    """Refuse texts of another number or length than the sequences: an ArgumentError says which."""
    if given is None or not captures:
        return
    if writes and not Sides(captures, 0).crosses:
        raise ArgumentError(
            "target_tokens of a model that reads one text",
            expected="tokens: an encoder–decoder alone has a target too",
        )
    counts = {capture.texts for capture in captures}
    if len(given) not in counts:
        raise ArgumentError(
            f"tokens of {len(given)} sequences",
            expected=f"of {_listed(counts)}, as many as were recorded",
        )
    for sequence, text in enumerate(given):
        lengths = _lengths(captures, sequence, writes)
        if lengths and len(text) not in lengths:  # of a text without a call nothing is known
            raise ArgumentError(
                f"{len(text)} tokens of sequence {sequence}",
                expected=f"{_listed(lengths)}, as many as were recorded",
                cause="another text, a token too many at its end, or padding, which is left out",
            )


def _lengths(captures: list[Capture], sequence: int, writes: bool) -> set[int]:
    """How many tokens one side of a sequence may have: in a pass, or in all of them together."""
    sides, lengths = Sides(captures, sequence), set()
    together: Counter[str] = Counter()
    for capture in captures:
        if not capture.has(sequence):
            continue
        real, name = capture.real(sequence), capture.name
        if capture.kind == "cross":
            lengths.add(len(real.queries if writes else real.keys))
            if writes:
                together[name] += len(real.queries)
        elif sides.writes(name) is not (not writes):
            lengths.add(len(real.keys))
            together[name] += len(real.queries)
    return lengths | set(together.values())


def _listed(numbers: set[int]) -> str:
    some = sorted(numbers)[-SOME:]
    *others, last = (f"{number}" for number in some)
    return f"{', '.join(others)} or {last}" if others else last
