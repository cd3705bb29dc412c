"""`--sequence` and `--part`: all sequences of a batch, or one, or a part of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.recording import Recording, Sequence


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


def with_progress(
    recording: Recording, sequence: int | None, progress: Callable[[float], None]
) -> Iterator[tuple[int, Sequence, Callable[[float], None]]]:
    """As `chosen`, each with what is to be told of its own progress, from 0 to 1."""
    wanted = chosen(recording, sequence)
    for done, (at, text) in enumerate(wanted):

        def tell(share: float, done: int = done) -> None:
            progress((done + share) / len(wanted))

        yield at, text, tell


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
