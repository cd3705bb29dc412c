"""Statistics over many texts: record each text, add the recording to totals, then drop it.

A text is read in pieces of at most `PIECE` characters, and each piece is split into contexts. So
memory grows neither with the number of texts nor with their length. Processes take the pieces in
turn, and the contexts do not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.errors import HeedfulError, RunError, TextError
from heedful.loaded.loaded_model import LoadedModel, ModelInputs
from heedful.processes import Processes
from heedful.recording.progress import OnProgress, sub_progress
from heedful.text import FileSource, text_files
from heedful.text.sources import PIECE

NewTotals = Callable[[], Any]  # returns an empty HeadTotals, or an object with `add` and `merge`


class LeftOut(NamedTuple):
    """A part of a text that is not included in the results.

    path: the path of the text. part: the number of the part, from 1. parts: the number of parts of
    the text. error: the reason, in one line.
    """

    path: str
    part: int
    parts: int
    error: str

    def __str__(self) -> str:
        part = f", part {self.part} of {self.parts}" if self.parts > 1 else ""
        if self.path in self.error and not part:
            return self.error
        return f"{self.path}{part}: {self.error}"


@dataclass
class Survey:
    """Results over many texts.

    found: the totals. texts: the number of texts of which at least the first part was read.
    contexts: the number of contexts. tokens: the number of tokens, including special tokens.
    left_out: the parts that are not included, in the order of the texts.
    inputs: the model's inputs of each context, by the numbers of text, part and context; only if
        `survey` keeps them.
    """

    found: Any
    texts: int = 0
    contexts: int = 0
    tokens: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    inputs: dict[tuple[int, ...], ModelInputs] = field(default_factory=dict)

    def merge(self, other: Survey) -> None:
        """Add the results over other texts, or over other parts of the same texts."""
        self.found.merge(other.found)
        self.texts += other.texts
        self.contexts += other.contexts
        self.tokens += other.tokens
        self.left_out += other.left_out
        self.inputs |= other.inputs


def survey(
    opened: LoadedModel,
    names: Sequence[str | Path],
    new_totals: NewTotals,
    *,
    include: str = "*",
    context_length: int | None = None,
    processes: Processes | None = None,
    timeout: float = 86_400.0,
    progress: OnProgress = lambda share: None,
    keeps_inputs: bool = False,
) -> Survey:
    """Record every text and add the recordings to totals; processes share the parts of the texts.

    A part of a text that raises an error is left out and listed in `left_out`. If a file cannot be
    decoded, all following parts of the file are left out too.

    Args:
        opened: the model with its tokenizer.
        names: files and folders; a file that occurs twice is read once.
        new_totals: returns empty totals, such as `HeadTotals`.
        include: a pattern for files of a folder, such as `*.txt`; see `heedful.text.open_source`.
        context_length: the maximum number of tokens in a context; default the model's context.
        processes: the processes that share the work, from `heedful.torchrun.started`; default this
            process alone.
        timeout: seconds that a process waits for the others at the end; default a day.
        progress: called with the completed share of this process's work, 0 to 1.
        keeps_inputs: return the inputs of all contexts too; memory grows with the texts.

    Returns:
        the results of all processes together, in every process. They are the same for any number
        of processes if all processes compute identical numbers for a text.

    Raises:
        TextError: a name does not exist or can be read only once, or a folder has no matching file.
        ArgumentError: `context_length` exceeds the model's context or is too small, or the model
            cannot read a text without an image.
        RunError: an unexpected error, with the path of the text that caused it.
        HeedfulError: another process is missing.

    >>> from tempfile import TemporaryDirectory
    >>> from heedful.models import GPT, GPTConfig
    >>> from heedful.loaded import LoadedGPT
    >>> from heedful.recording import HeadTotals
    >>> from heedful.text import CharacterTokenizer
    >>> config = GPTConfig(vocabulary=4, context_length=8, width=8, layers=1, heads=2)
    >>> opened = LoadedGPT(GPT(config).eval(), CharacterTokenizer(" abc"), Path())
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "long.txt").write_text("a cab a cab a cab")  # in contexts of 8, 8, 1
    ...     _ = Path(folder, "short.txt").write_text("bab")
    ...     together = survey(opened, [folder], HeadTotals)
    >>> together.texts, together.contexts, together.tokens
    (2, 4, 20)
    >>> together.found.heads()[0].queries["previous"]  # no query is the first token of a context
    16
    """
    processes = processes or Processes()

    def list_texts() -> list[tuple[str, int]]:
        opened.contexts("", context_length)  # raises an error if no text can be read
        return [(path, _parts(path)) for path in text_files(names, include)]

    texts = processes.compute_on_first(list_texts)
    count = sum(parts for _, parts in texts)
    local = Survey(new_totals())
    with processes.process_group(timeout):
        pieces = islice(enumerate(_pieces(texts)), processes.rank, None, processes.size)
        for number, piece in pieces:
            report = sub_progress(progress, min(number, count - 1), count)
            part = _survey_piece(piece, opened, new_totals, context_length, report)
            if not keeps_inputs:
                part.inputs.clear()
            local.merge(part)
        progress(1.0)
        surveys = processes.all_gather(local)
    total = Survey(new_totals())
    for part in surveys:
        total.merge(part)
    order = {path: text for text, (path, _) in enumerate(texts)}
    total.left_out.sort(key=lambda missing: (order[missing.path], missing.part))
    return total


class _Piece(NamedTuple):
    """A part of a text, or the error that was raised on reading it."""

    text: int
    path: str
    part: int
    parts: int
    content: str | HeedfulError


def _parts(path: str) -> int:
    """Estimate the number of pieces of a text from its size in bytes."""
    return max(1, -(-(FileSource((path,)).size or 0) // PIECE))


def _pieces(texts: Sequence[tuple[str, int]]) -> Iterator[_Piece]:
    """Yield all pieces of all texts in order; on an error, the error is the text's last piece."""
    for text, (path, parts) in enumerate(texts):
        part = 0
        try:
            for part, piece in enumerate(FileSource((path,)).pieces(PIECE), 1):
                yield _Piece(text, path, part, max(part, parts), piece)
        except HeedfulError as error:
            yield _Piece(text, path, part + 1, max(part + 1, parts), error)


def _survey_piece(
    piece: _Piece,
    opened: LoadedModel,
    new_totals: NewTotals,
    context_length: int | None,
    progress: OnProgress,
) -> Survey:
    """Return the results over all contexts of a piece; after an error, only the error."""
    result = Survey(new_totals(), texts=int(piece.part == 1))
    try:
        contexts = _contexts(piece, opened, context_length)
        for i, inputs in enumerate(contexts):
            report, index = sub_progress(progress, i, len(contexts)), (piece.text, piece.part, i)
            result.found.add(opened.record_inputs(inputs), index, piece.path, report)
            result.contexts, result.tokens = i + 1, result.tokens + len(inputs.tokens)
            result.inputs[index] = inputs
    except HeedfulError as error:
        left_out = LeftOut(piece.path, piece.part, piece.parts, str(error))
        return Survey(new_totals(), left_out=[left_out])
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(
            f"{piece.path}: unexpected {message}",
            remedy="if memory ran out, use shorter contexts (--context-length); otherwise please "
            "report the traceback, which --debug prints",
        ) from error
    return result


def _contexts(piece: _Piece, opened: LoadedModel, context_length: int | None) -> list[ModelInputs]:
    """Return a piece's inputs; raise the piece's error, or a `TextError` for a text too short."""
    if isinstance(piece.content, HeedfulError):
        raise piece.content
    with torch.inference_mode():
        contexts = opened.contexts(piece.content, context_length)
    tokens = sum(len(inputs.tokens) for inputs in contexts)
    if piece.parts == 1 and tokens < 2:
        raise TextError(
            f"{piece.path} has {'one token' if tokens else 'no token'}",
            expected="two or more: a single token can attend only to itself",
        )
    return contexts
