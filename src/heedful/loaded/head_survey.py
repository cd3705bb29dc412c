"""What is gathered over many texts: each is recorded, taken in, and let go.

A text is read in pieces of at most `PIECE` characters, cut where no tokenizer joins them, and a
piece in contexts of the model. So memory grows neither with the number of texts nor with their
length. Processes take the pieces in turn, so contexts are the same however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.errors import HeedfulError, RunError, TextError
from heedful.loaded.loaded_model import LoadedModel, Pass
from heedful.processes import Processes
from heedful.recording.progress import Tell, within
from heedful.text import FileSource, text_files
from heedful.text.sources import PIECE

Make = Callable[[], Any]  # gives fresh totals: HeadTotals, or what has its `add` and `merge`


class LeftOut(NamedTuple):
    """A part of a text that is not in the numbers.

    path: of the text. part, parts: which of how many, from 1. error: why, in one line.
    """

    path: str
    part: int
    parts: int
    error: str

    def __str__(self) -> str:
        of = f", part {self.part} of {self.parts}" if self.parts > 1 else ""
        return (
            self.error if self.path in self.error and not of else f"{self.path}{of}: {self.error}"
        )


@dataclass
class Survey:
    """What was found over many texts.

    found: what was gathered. texts: how many were read, at least their first part. contexts,
    tokens: of these, with the tokens that stand around a text in each context. left_out: what is
    not in the numbers, in the order of the texts.
    """

    found: Any
    texts: int = 0
    contexts: int = 0
    tokens: int = 0
    left_out: list[LeftOut] = field(default_factory=list)

    def merge(self, other: Survey) -> None:
        """Take in what was found over other texts, or other parts of them."""
        self.found.merge(other.found)
        self.texts += other.texts
        self.contexts += other.contexts
        self.tokens += other.tokens
        self.left_out += other.left_out


def survey(
    opened: LoadedModel,
    names: Sequence[str | Path],
    make: Make,
    *,
    include: str = "*",
    context_length: int | None = None,
    processes: Processes | None = None,
    timeout: float = 86_400.0,
    progress: Tell = lambda share: None,
) -> Survey:
    """Record every text, and gather what is asked over all of them, each process its share.

    A text that cannot be read is left out, and named in `left_out`; of a long one the part that
    cannot be read, whole, and where a file cannot be decoded all after it.

    Args:
        opened: the model with its tokenizer.
        names: files and folders; each file is read once.
        make: fresh totals, `HeadTotals`.
        include: which files of a folder, such as `*.txt`; see `heedful.text.open_source`.
        context_length: the most tokens of a context; default as many as the model reads.
        processes: those that share the work, as `heedful.torchrun.started` knows them; default
            this one alone.
        timeout: seconds that processes which are done wait for one that is not; a day.
        progress: is told of the share of all pieces that this process is past, 0 to 1.

    Returns:
        what all processes together have found: for each of them the same, and the same however
        many they are, as far as they compute the same numbers of a text.

    Raises:
        TextError: a name is missing, or a folder has no such file.
        ArgumentError: contexts longer than the model's, or a model that reads no text alone.
        RunError: an error that nobody expected, with the text that it came from.
        HeedfulError: another process that is missing.

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
    >>> together.found.heads()[0].queries["previous"]  # of the first token of a context none
    16
    """
    here = processes or Processes()

    def listed() -> list[tuple[str, int]]:
        opened.contexts("", context_length)  # an error of every text is raised before any is read
        return [(path, _parts(path)) for path in text_files(names, include)]

    texts = here.announced_of(listed)
    number_of_pieces = sum(parts for _, parts in texts)
    own = Survey(make())
    with here.together(timeout):
        for number, piece in islice(enumerate(_pieces(texts)), here.rank, None, here.size):
            tell = within(progress, min(number, number_of_pieces - 1), number_of_pieces)
            own.merge(_over_piece(piece, opened, make, context_length, tell))
        progress(1.0)
        everything = here.each(own)
    together = Survey(make())
    for part in everything:
        together.merge(part)
    order = {path: text for text, (path, _) in enumerate(texts)}
    together.left_out.sort(key=lambda left: (order[left.path], left.part))
    return together


class _Piece(NamedTuple):
    """A part of a text, or the error that reading it gave."""

    text: int
    path: str
    part: int
    parts: int
    content: str | HeedfulError


def _parts(path: str) -> int:
    """How many pieces a text has: about, as its size is in bytes."""
    return max(1, -(-(FileSource((path,)).size or 0) // PIECE))


def _pieces(texts: Sequence[tuple[str, int]]) -> Iterator[_Piece]:
    """All pieces of all texts, in the same order in every process; none after an error."""
    for text, (path, parts) in enumerate(texts):
        part = 0
        try:
            for part, piece in enumerate(FileSource((path,)).pieces(PIECE), 1):
                yield _Piece(text, path, part, max(part, parts), piece)
        except HeedfulError as error:
            yield _Piece(text, path, part + 1, max(part + 1, parts), error)


def _over_piece(
    piece: _Piece,
    opened: LoadedModel,
    make: Make,
    context_length: int | None,
    progress: Tell,
) -> Survey:
    """What one piece gives: all of it, or nothing and why."""
    found = Survey(make(), texts=int(piece.part == 1))
    try:
        contexts = _contexts(piece, opened, context_length)
        for i, given in enumerate(contexts):
            tell = within(progress, i, len(contexts))
            found.found.add(opened.recorded(given), (piece.text, piece.part, i), piece.path, tell)
            found.contexts, found.tokens = i + 1, found.tokens + len(given.tokens)
    except HeedfulError as error:
        left_out = LeftOut(piece.path, piece.part, piece.parts, str(error))
        return Survey(make(), left_out=[left_out])
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(
            f"{piece.path}: unexpected {what}",
            remedy="where memory was short, ask for shorter contexts (--context-length); else see "
            "where with --debug, and please report it",
        ) from error
    return found


def _contexts(piece: _Piece, opened: LoadedModel, context_length: int | None) -> list[Pass]:
    """What the model is given for a piece; a text alone with less than two tokens is refused."""
    if isinstance(piece.content, HeedfulError):
        raise piece.content
    with torch.inference_mode():
        contexts = opened.contexts(piece.content, context_length)
    tokens = sum(len(given.tokens) for given in contexts)
    if piece.parts == 1 and tokens < 2:
        raise TextError(
            f"{piece.path} has {'one token' if tokens else 'no token'}",
            expected="two or more: a token alone can look at nothing but itself",
        )
    return contexts
