"""`--sequence` and `--part`: all sequences of a batch, one of them, or a part of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from heedful.recording import Recording, Sequence

Result = TypeVar("Result")


def numbered_sequences(recording: Recording, sequence: int | None) -> list[tuple[int, Sequence]]:
    """Return (number, sequence) pairs: the chosen one; for None, the first and all that have calls.

    Raises:
        ArgumentError: there is no such sequence.
    """
    from heedful.ops.indexing import check_index

    sequences = recording.sequences or [recording]
    if sequence is not None:
        return [(sequence, sequences[check_index("sequence", sequence, len(sequences))])]
    return [(number, text) for number, text in enumerate(sequences) if len(text) or number == 0]


def map_sequences(
    recording: Recording,
    sequence: int | None,
    compute: Callable[[Sequence, Callable[[float], None]], Result],
) -> dict[int, Result]:
    """Return the results of `compute(sequence, progress)` for the chosen sequences, by number."""
    from heedful.recording.progress import sub_progress
    from heedful.views.progress import progress_bar

    texts = numbered_sequences(recording, sequence)
    with progress_bar("reading the maps") as report:
        return {
            number: compute(text, sub_progress(report, i, len(texts)))
            for i, (number, text) in enumerate(texts)
        }


def sequence_part(recording: Recording, sequence: int, part: int) -> Sequence:
    """Return a part of a sequence, such as a window.

    Raises:
        ArgumentError: there is no such sequence or part.
    """
    from heedful.ops.indexing import check_index

    [(_, text)] = numbered_sequences(recording, sequence)
    return text.parts[check_index("part", part, len(text.parts))]
