"""The parameters of a page's request, each checked before it is used."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping

from heedful.errors import ArgumentError
from heedful.recording import Call

NUMBER = re.compile(r"[0-9]{1,12}\Z", re.ASCII)
LONGEST = 200  # characters of a search text
SEGMENTS = 60  # at most, in one request

# The indices of a recording, of a text in it and of a call of that text; for a live text also the
# number of tokens
Indices = tuple[int, int, int] | tuple[int, int, int, int]


class Request:
    """The parameters of a request, as strings.

    Every method raises an `ArgumentError` for a parameter that is malformed or missing.

    >>> request = Request({"at": "7", "queries": "3-5"})
    >>> request.number("at", 8), request.run("queries", 10)
    (7, range(3, 5))
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    def indices(self) -> Indices:
        """Return the indices of the call."""
        match [_number(part) for part in self._value("call").split(".")]:
            case [int(recording), int(text), int(call)]:
                return recording, text, call
            case [int(recording), int(text), int(call), int(tokens)]:
                return recording, text, call, tokens
        raise self._error("call", "three whole numbers with points between")

    def number(self, name: str, below: int, minimum: int = 0) -> int:
        """Return a whole number in [`minimum`, `below`)."""
        number = _number(self._value(name))
        if number is None or not minimum <= number < below:
            raise self._error(name, f"a whole number from {minimum} to {below - 1}")
        return number

    def numbers(self, name: str, count: int) -> list[int]:
        """Return `count` whole numbers, separated by commas."""
        numbers = self._list(name)
        if len(numbers) != count:
            raise self._error(name, f"{count} whole numbers with commas between")
        return numbers

    def head(self, call: Call) -> int:
        """Return the number of a recorded head of the call."""
        [head] = self._heads("head", call, 1)
        return head

    def heads(self, call: Call) -> list[int]:
        """Return the numbers of recorded heads of the call; a duplicate raises an error."""
        return self._heads("heads", call, len(call.heads))

    def run(self, name: str, size: int) -> range:
        """Return a range of an axis, written as `start-stop`; `stop` is exclusive."""
        run = _run(self._value(name), size)
        if run is None:
            raise self._error(name, f"start-stop, whole numbers from 0 to {size}")
        return run

    def segments(self, name: str, size: int) -> list[list[range]]:
        """Return the ranges of each segment of an axis, written as `0-40,50-60;60-80`."""
        segments = []
        for segment in filter(None, self._value(name).split(";")):
            runs = [_run(run, size) for run in segment.split(",")]
            segments.append([run for run in runs if run])
            if len(segments[-1]) < len(runs):
                raise self._error(name, f"segments such as 0-4,5-7;8-9, with ends up to {size}")
        if len(segments) > SEGMENTS:
            raise self._error(name, f"at most {SEGMENTS} segments")
        return segments

    def parts(self, name: str) -> list[list[int]]:
        """Return heads and edges, written as `call.head` and `call.head.query.key`."""
        parts = [part.split(".") for part in self._value(name).split(",")]
        if not all(len(part) in (2, 4) and all(map(NUMBER.match, part)) for part in parts):
            raise self._error(name, "call.head or call.head.query.key, with commas between")
        return [list(map(int, part)) for part in parts]

    def choice(self, name: str, *choices: str) -> str:
        """Return one of `choices`; the first is the default."""
        choice = self._parameters.get(name, choices[0])
        if choice not in choices:
            raise self._error(name, " or ".join(choices))
        return choice

    def text(self, name: str) -> str:
        """Return the text of a search."""
        text = self._value(name)
        if not 0 < len(text) <= LONGEST:
            raise self._error(name, f"a text of 1 to {LONGEST} characters")
        return text

    def _heads(self, name: str, call: Call, limit: int) -> list[int]:
        heads = self._list(name)
        recorded = set(call.heads)
        if len(heads) > limit or len(recorded.intersection(heads)) < len(heads):
            numbers = f"{min(recorded)} to {max(recorded)}" if recorded else "none"
            raise self._error(name, f"heads of this call ({numbers}), each once")
        return heads

    def _list(self, name: str) -> list[int]:
        numbers = [_number(part) for part in self._value(name).split(",")]
        if None in numbers:
            raise self._error(name, "whole numbers with commas between")
        return [number for number in numbers if number is not None]

    def _value(self, name: str) -> str:
        if name not in self._parameters:
            raise ArgumentError(f"a request without {name!r}", expected=f"{name}=…")
        return self._parameters[name]

    def _error(self, name: str, expected: str) -> ArgumentError:
        return ArgumentError(f"{name}={reprlib.repr(self._parameters[name])}", expected=expected)


def _number(text: str) -> int | None:
    return int(text) if NUMBER.match(text) else None


def _run(text: str, size: int) -> range | None:
    start, _, stop = text.partition("-")
    first, last = _number(start), _number(stop)
    fits = first is not None and last is not None and first <= last <= size
    return range(first, last) if fits else None  # type: ignore[arg-type]
