"""`--sequence` and `--part`: all sequences of a batch, or one, or a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.recording import Recording, Sequence


Result = TypeVar("Result")


def chosen(recording: Recording, sequence: int | None) -> list[tuple[int, Sequence]]:
    """The sequences that are asked for, each with its number; without a number all that have calls.

    Raises:
        ArgumentError: no such sequence.
    """
    sequences = recording.sequences or [recording]
    if sequence is not None:
        _check("sequence", sequence, len(sequences))
        return [(sequence, sequences[sequence])]
    return [(at, one) for at, one in enumerate(sequences) if len(one) or at == 0]


def of_each(
    recording: Recording,
    sequence: int | None,
    compute: Callable[[Sequence, Callable[[float], None]], Result],
    progress: Callable[[float], None],
) -> dict[int, Result]:
    """What is computed of each sequence, by its number; `compute` gets it and its own progress."""
    wanted = chosen(recording, sequence)
    return {
        at: compute(text, lambda share, done=done: progress((done + share) / len(wanted)))  # type: ignore[misc]
        for done, (at, text) in enumerate(wanted)
    }


def part_of(recording: Recording, sequence: int, part: int) -> Sequence:
    """A part of a sequence, such as a window.

    Raises:
        ArgumentError: no such sequence or part.
    """
    [(_, text)] = chosen(recording, sequence)
    _check("part", part, len(text.parts))
    return text.parts[part]


def _check(what: str, number: int, count: int) -> None:
    if number >= count:
        raise ArgumentError(f"{what} {number}", expected=f"0 to {count - 1}, as there are {count}")
