"""What is gathered over many texts: each is recorded, taken in, and let go.

A text is read in parts of at most `PIECE` characters, cut where no tokenizer joins them, and a part
in contexts of the model. So memory grows neither with the number of texts nor with their length,
a long text can be shared out too, and contexts are the same however many processes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch

from heedful.errors import HeedfulError, RunError, TextError
from heedful.opened.protocol import Opened, Pass
from heedful.opened.sharing import shares
from heedful.processes import Processes
from heedful.recording import Recording
from heedful.text import FileSource, text_files
from heedful.text.sources import PIECE

Tell = Callable[[float], None]


class Mergeable(Protocol):
    """What takes recordings in, and what another one has taken in; `HeadTotals` is one.

    Its numbers are to be the same however recordings were shared out and in whatever order they
    came: add up exactly (`heedful.ops.exact_sums`), count, or take the largest.
    """

    def add(self, recording: Recording, number: tuple[int, ...], name: str, progress: Tell) -> None:
        """Take in a recording, whose number and name are its own among all."""

    def merge(self, other: Self) -> None:
        """Take in what another one has, of other recordings."""


M = TypeVar("M", bound=Mergeable)


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
        is_named = self.path in self.error and not of
        return self.error if is_named else f"{self.path}{of}: {self.error}"


@dataclass
class OverTexts(Generic[M]):
    """What was found over many texts.

    found: what was gathered. texts: how many were read, at least their first part. contexts,
    tokens: of these, with the tokens that stand around a text in each context. left_out: what is
    not in the numbers, in the order of the texts.
    """

    found: M
    texts: int = 0
    contexts: int = 0
    tokens: int = 0
    left_out: list[LeftOut] = field(default_factory=list)

    def merge(self, other: OverTexts[M]) -> None:
        """Take in what another process has found."""
        self.found.merge(other.found)
        self.texts += other.texts
        self.contexts += other.contexts
        self.tokens += other.tokens
        self.left_out += other.left_out


def over_texts(
    opened: Opened,
    names: Sequence[str | Path],
    make: Callable[[], M],
    *,
    include: str = "*",
    context_length: int | None = None,
    processes: Processes | None = None,
    timeout: float = 86_400.0,
    progress: Tell = lambda share: None,
) -> OverTexts[M]:
    """Record every text, and gather what is asked over all of them, each process its share.

    A text that cannot be read is left out, and named in `left_out`; of a long one the part that
    cannot be read, whole.

    Args:
        opened: the model with its tokenizer.
        names: files and folders; each file is read once.
        make: a fresh one of what gathers, such as `HeadTotals`.
        include: which files of a folder, such as `*.txt`; see `heedful.text.open_source`.
        context_length: the most tokens of a context; default as many as the model reads.
        processes: those that share the work, as `heedful.torchrun.started` knows them; default
            this one alone.
        timeout: seconds that processes which are done wait for one that is not; a day.
        progress: is told of the share of its own work that is done, 0 to 1.

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
    >>> from heedful.opened import OpenedGPT
    >>> from heedful.recording import HeadTotals
    >>> from heedful.text import CharacterTokenizer
    >>> config = GPTConfig(vocabulary=4, context_length=8, width=8, layers=1, heads=2)
    >>> opened = OpenedGPT(GPT(config).eval(), CharacterTokenizer(" abc"), Path())
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "long.txt").write_text("a cab a cab a cab")  # in contexts of 8, 8, 1
    ...     _ = Path(folder, "short.txt").write_text("bab")
    ...     together = over_texts(opened, [folder], HeadTotals)
    >>> together.texts, together.contexts, together.tokens
    (2, 4, 20)
    >>> together.found.heads()[0].queries["previous"]  # of the first token of a context none
    16
    """
    here = processes or Processes()

    def listed() -> list[tuple[str, int]]:
        opened.contexts("", context_length)  # what is wrong for every text is said at once
        return [*map(_sized, text_files(names, include))]

    texts = here.announced_of(listed)
    parts = [part for text, (_, size) in enumerate(texts) for part in _parts(text, size)]
    own = [parts[i] for i in shares([part.size for part in parts], here.size)[here.rank]]
    done = _Done(own, progress)
    reader = _Reader(opened, [path for path, _ in texts], make, context_length, done)
    with here.together(timeout):
        for text, wanted in groupby(own, key=lambda part: part.text):
            reader.read(text, {part.part: part for part in wanted})
        everything = here.each(reader.together)
    together = OverTexts(make())
    for one in everything:
        together.merge(one)
    order = {path: text for text, (path, _) in enumerate(texts)}
    together.left_out.sort(key=lambda one: (order[one.path], one.part))
    return together


def _sized(path: str) -> tuple[str, int]:
    return path, FileSource((path,)).size or 0


class _Part(NamedTuple):
    """A part of a text; the last one has all that is left. size: bytes, about."""

    text: int
    part: int
    parts: int
    size: int


def _parts(text: int, size: int) -> list[_Part]:
    starts = range(0, max(1, size), PIECE)
    return [
        _Part(text, part, len(starts), max(1, min(PIECE, size - start)))
        for part, start in enumerate(starts)
    ]


class _Done:
    """Tells how much of its own work is done, by the sizes of parts."""

    def __init__(self, own: list[_Part], tell: Tell) -> None:
        self._all, self._done, self._tell = sum(part.size for part in own), 0, tell

    def within(self, part: _Part, share: float) -> None:
        """A share of a part is done."""
        self._tell(min(1.0, (self._done + share * part.size) / self._all))

    def with_all_of(self, part: _Part) -> None:
        """A part is done."""
        self._done += part.size
        self.within(part, 0.0)


class _Reader(Generic[M]):
    """Reads the parts of texts that a process takes, and gathers what it is to find."""

    def __init__(
        self,
        opened: Opened,
        paths: list[str],
        make: Callable[[], M],
        context_length: int | None,
        done: _Done,
    ) -> None:
        self._opened, self._paths, self._make = opened, paths, make
        self._context_length, self._done = context_length, done
        self.together = OverTexts(make())

    def read(self, text: int, wanted: dict[int, _Part]) -> None:
        """Take in some parts of a text; what stands after an unreadable place is left out."""
        until, last = max(wanted), wanted[max(wanted)].parts - 1
        pieces, at = FileSource((self._paths[text],)).pieces(PIECE), 0
        while at <= until or until == last:  # the last part has all that is left
            try:
                piece = next(pieces, None)
            except HeedfulError as error:
                for part in wanted.values():
                    if part.part >= min(at, last):
                        self._leave_out(part, error)
                return
            if piece is None:
                return
            if min(at, last) in wanted:
                self._take(wanted[min(at, last)], at, piece)
            at += 1

    def _take(self, part: _Part, at: int, piece: str) -> None:
        """Take in a piece of a text, all of it or nothing."""
        path, fresh = self._paths[part.text], self._make()
        try:
            contexts = self._contexts(part, piece)
            for i, given in enumerate(contexts):

                def tell(share: float, i: int = i) -> None:
                    self._done.within(part, (i + share) / len(contexts))

                fresh.add(self._opened.recorded(given), (part.text, at, i), path, tell)
        except HeedfulError as error:
            self._leave_out(part, error)
            return
        except Exception as error:
            raise _unexpected(path, error) from error
        self.together.merge(
            OverTexts(fresh, int(at == 0), len(contexts), sum(len(one.tokens) for one in contexts))
        )
        self._done.with_all_of(part)

    def _contexts(self, part: _Part, piece: str) -> list[Pass]:
        with torch.inference_mode():
            contexts = self._opened.contexts(piece, self._context_length)
        if part.parts == 1:
            _check_long_enough(self._paths[part.text], contexts)
        return contexts

    def _leave_out(self, part: _Part, error: HeedfulError) -> None:
        path = self._paths[part.text]
        self.together.left_out.append(LeftOut(path, part.part + 1, part.parts, str(error)))
        self._done.with_all_of(part)


def _check_long_enough(path: str, contexts: list[Pass]) -> None:
    """Refuse a text in which no token has another one to look at."""
    tokens = sum(len(one.tokens) for one in contexts)
    if tokens < 2:
        raise TextError(
            f"{path} has {'one token' if tokens else 'no token'}",
            expected="two or more: a token alone can look at nothing but itself",
        )


def _unexpected(path: str, error: Exception) -> RunError:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return RunError(
        f"{path}: unexpected {what}",
        remedy="where memory was short, ask for shorter contexts (--context-length); else see "
        "where with --debug, and please report it",
    )
