"""What a page may choose from: recordings, their texts, and the calls of each.

A text is one sequence of a batch; a generation, with its many passes, is also there as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from heedful.errors import HeedfulError
from heedful.recorder import Call, Recording


@dataclass(frozen=True)
class Text:
    """The calls on one text. `label` says which text it is."""

    label: str
    calls: list[Call]

    def about(self) -> dict[str, Any]:
        """What a page needs to list it."""
        return {"label": self.label, "calls": [_about(call) for call in self.calls]}


class Texts:
    """All texts of named recordings, each found by the number of its recording and its own."""

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self.recordings: dict[str, Recording] = {}
        self._of: list[list[Text]] = []
        for name, recording in recordings.items():
            self.add(name, recording)

    def add(self, name: str, recording: Recording) -> None:
        """One more recording; a name that is taken gets a number."""
        names = (f"{name} ({n})" for n in count(2))
        self.recordings[next(names) if name in self.recordings else name] = recording
        self._of.append(_texts_of(recording))

    def about(self) -> list[dict[str, Any]]:
        """Each recording with its texts and calls."""
        return [
            {
                "name": name,
                "missed": self.recordings[name].missed,
                "texts": [text.about() for text in texts],
            }
            for name, texts in zip(self.recordings, self._of, strict=True)
        ]

    def call(self, recording: int, text: int, call: int) -> Call:
        """One call; LookupError where there is none."""
        for at, among in ((recording, self._of), (text, self._of[recording])):
            if not 0 <= at < len(among):
                raise LookupError(f"number {at} of {len(among)}")
        calls = self._of[recording][text].calls
        if not 0 <= call < len(calls):
            raise LookupError(f"call {call} of {len(calls)}")
        return calls[call]


def _texts_of(recording: Recording) -> list[Text]:
    found = []
    for number, sequence in enumerate(recording.sequences):
        name = f"text {number + 1}" if len(recording.sequences) > 1 else "the text"
        calls = list(sequence)
        if len({call.pass_index for call in calls}) > 1:
            with suppress(HeedfulError):
                found.append(Text(f"{name}, as one", recording.stitched(number)))
            name = f"{name}, pass by pass"
        found.append(Text(name, calls))
    return found


def _about(call: Call) -> dict[str, Any]:
    H, N, M = call.shape
    return {
        "name": call.name,
        "layer": call.layer,
        "index": call.index,
        "pass": call.pass_index,
        "kind": call.kind,
        "proof": call.proof,
        "why": call.why,
        "heads": call.heads,
        "shape": [H, N, M],
        "first": call.causes.offset,
        "named": call.key_tokens is not None,
    }
