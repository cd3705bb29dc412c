"""Reads a question as it comes from a page: words for numbers, each checked before it is used."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping

from heedful.errors import ArgumentError
from heedful.recording import Call

NUMBER = re.compile(r"[0-9]{1,12}\Z", re.ASCII)
LONGEST = 200  # characters of a text that is looked for
SEGMENTS = 60  # that are marked at once

# A call: the number of its recording, of its text, and its own; of a text that grows also how many
# tokens it has
Where = tuple[int, int, int] | tuple[int, int, int, int]


class Asked:
    """The words that came with a question.

    Every method raises an `ArgumentError` where a word is missing or is not what it should be.

    >>> asked = Asked({"at": "7", "queries": "3-5"})
    >>> asked.number("at", 8), asked.run("queries", 10)
    (7, range(3, 5))
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def where(self) -> Where:
        """Which call."""
        match [_number(part) for part in self._word("call").split(".")]:
            case [int(recording), int(text), int(call)]:
                return recording, text, call
            case [int(recording), int(text), int(call), int(tokens)]:
                return recording, text, call, tokens
        raise self._wrong("call", "three whole numbers with points between")

    def number(self, name: str, below: int, least: int = 0) -> int:
        """A whole number from `least` on, less than `below`."""
        found = _number(self._word(name))
        if found is None or not least <= found < below:
            raise self._wrong(name, f"a whole number from {least} to {below - 1}")
        return found

    def numbers(self, name: str, count: int) -> list[int]:
        """So many whole numbers with commas between."""
        found = self._listed(name)
        if len(found) != count:
            raise self._wrong(name, f"{count} whole numbers with commas between")
        return found

    def head(self, call: Call) -> int:
        """The number of a head of a call."""
        [head] = self._heads("head", call, 1)
        return head

    def heads(self, call: Call) -> list[int]:
        """Numbers of heads of a call, each once."""
        return self._heads("heads", call, len(call.heads))

    def run(self, name: str, size: int) -> range:
        """Some of an axis, as `start-stop`; `stop` is not among them."""
        found = _run(self._word(name), size)
        if found is None:
            raise self._wrong(name, f"start-stop, whole numbers from 0 to {size}")
        return found

    def marks(self, name: str, size: int) -> list[list[range]]:
        """Segments of an axis, as `0-40,50-60;60-80`: each some runs of neighbours."""
        found = []
        for segment in filter(None, self._word(name).split(";")):
            runs = [_run(run, size) for run in segment.split(",")]
            found.append([run for run in runs if run])
            if len(found[-1]) < len(runs):
                raise self._wrong(name, f"segments such as 0-4,5-7;8-9, with ends up to {size}")
        if len(found) > SEGMENTS:
            raise self._wrong(name, f"at most {SEGMENTS} segments")
        return found

    def choice(self, name: str, *choices: str) -> str:
        """One of some words; the first where none came."""
        found = self._words.get(name, choices[0])
        if found not in choices:
            raise self._wrong(name, " or ".join(choices))
        return found

    def text(self, name: str) -> str:
        """A text that is looked for."""
        found = self._word(name)
        if not 0 < len(found) <= LONGEST:
            raise self._wrong(name, f"a text of 1 to {LONGEST} characters")
        return found

    def _heads(self, name: str, call: Call, most: int) -> list[int]:
        found = self._listed(name)
        known = set(call.heads)
        if (
            not 0 < len(found) <= most
            or len(set(found)) < len(found)
            or not known.issuperset(found)
        ):
            few = f"{min(known)} to {max(known)}" if known else "none"
            raise self._wrong(name, f"heads of this call ({few}), each once")
        return found

    def _listed(self, name: str) -> list[int]:
        found = [_number(part) for part in self._word(name).split(",")]
        if None in found:
            raise self._wrong(name, "whole numbers with commas between")
        return [number for number in found if number is not None]

    def _word(self, name: str) -> str:
        if name not in self._words:
            raise ArgumentError(f"a question without {name!r}", expected=f"{name}=…")
        return self._words[name]

    def _wrong(self, name: str, expected: str) -> ArgumentError:
        return ArgumentError(f"{name}={reprlib.repr(self._words[name])}", expected=expected)


def _number(text: str) -> int | None:
    return int(text) if NUMBER.match(text) else None


def _run(text: str, size: int) -> range | None:
    start, _, stop = text.partition("-")
    first, last = _number(start), _number(stop)
    fits = first is not None and last is not None and first <= last <= size
    return range(first, last) if fits else None  # type: ignore[arg-type]
