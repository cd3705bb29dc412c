"""Pairs of texts, such as a sentence and its translation: from TSV to memory-mapped token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heedful.errors import RunError, TextError
from heedful.files import atomic_write, make_directory
from heedful.text.preparation import TokenizerChoice
from heedful.text.sources import FileSource
from heedful.text.tiktoken_encoding import open_encoding, original_ids
from heedful.text.token_file import TokenFile, distinct_ids, id_type, write_ids
from heedful.text.tokenizer import Tokenizer

EXTRA_IDS = 2  # after the tokenizer's ids: `begin` of targets, `end` of sources and targets


class Pair(NamedTuple):
    """A source text and its target."""

    source: str
    target: str


def read_pairs(path: str | Path) -> list[Pair]:
    """Read the pairs of a TSV file; each line is a source, a tab, and its target.

    Args:
        path: a file in UTF-8, or `-` for standard input.

    Raises:
        TextError: the file cannot be read, or a line is not a pair (the error names the line).

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> _ = path.write_text("good morning\\tguten Morgen\\ngood night\\tgute Nacht\\n")
    >>> read_pairs(path)[1].target
    'gute Nacht'
    """
    text = "".join(FileSource((str(path),)).pieces())
    lines = text.removesuffix("\n").split("\n")
    return [_pair(line.removesuffix("\r"), n + 1, str(path)) for n, line in enumerate(lines)]


def _pair(line: str, number: int, path: str) -> Pair:
    sides = [side.strip() for side in line.split("\t")]
    if len(sides) != 2 or not all(sides):
        raise TextError(
            f"line {number:,} of {path} is not a pair: {line!r:.60}",
            expected="a source, one tab, and its target",
            cause="an empty line or side, another separator, or more columns",
            remedy="correct or remove the line; `cut -f1,2` keeps two columns",
        )
    return Pair(*sides)


class Pairs:
    """Pairs of id sequences: `pairs[i]` is a source and a target, each ending with the end id.

    Args:
        ids: the ids of all pairs, concatenated (source, target, source, …), (T,).
        bounds: the offset of each source and target, then T, (2P + 1,).
    """

    def __init__(self, ids: np.ndarray, bounds: np.ndarray) -> None:
        self._ids, self._bounds = ids, bounds

    def __len__(self) -> int:
        """The number of pairs, P."""
        return len(self._bounds) // 2

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and the target of a pair, each with the end id."""
        start, middle, stop = self._bounds[2 * i : 2 * i + 3]
        return self._ids[start:middle], self._ids[middle:stop]


class PairFile(Pairs):
    """Memory-mapped pairs from a file of `prepare_pairs`: `train` and, at its end, `validation`.

    Args:
        path: the `.npy` file.
        end: the id at the end of each source and target.
        validation: the fraction of pairs at the end of the file that is held out for validation.

    Raises:
        RunError: the file is missing or damaged.
    """

    def __init__(self, path: str | Path, end: int, validation: float = 0.1) -> None:
        tokens = TokenFile(path, 0.0)  # this class splits the pairs, not the ids
        self.ids, self.checksum, self.begin = tokens.ids, tokens.checksum, end - 1
        ends = np.flatnonzero(self.ids == end) + 1
        if len(ends) % 2 or not len(ends) or ends[-1] != len(self.ids):
            raise RunError(
                f"{path} has no pairs",
                cause="a file of another run, or a damaged file",
                remedy="restore it, or train again",
            )
        bounds = np.concatenate([[0], ends])
        super().__init__(self.ids, bounds)
        split = 2 * int(len(self) * (1 - validation))
        self.train = Pairs(self.ids, bounds[: split + 1])
        self.validation = Pairs(self.ids, bounds[split:])


def prepare_pairs(
    pairs: Sequence[Pair],
    choice: TokenizerChoice,
    path: str | Path,
    *,
    max_length: int,
    validation: float = 0.1,
) -> tuple[Tokenizer, PairFile]:
    """Train or open the shared tokenizer of sources and targets, and write their ids to a file.

    The model has two more ids than the tokenizer, `begin` and `end`; `end` follows each text.

    Args:
        pairs: at least one pair.
        choice: the tokenizer to train or open.
        path: the `.npy` file, written atomically.
        max_length: the maximum number of tokens of a source or target, `end` included.
        validation: the fraction of pairs at the end that is held out for validation.

    Raises:
        TextError: as `prepare`, or a text is too long (the error names the line).
        SaveError, ArgumentError: as `prepare`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pairs.npy"
    >>> pairs = [Pair("ab", "ba"), Pair("abc", "cba")]
    >>> tokenizer, ids = prepare_pairs(pairs, TokenizerChoice("characters"), path, max_length=4)
    >>> [side.tolist() for side in ids.train[0]]
    [[0, 1, 4], [1, 0, 4]]
    """
    tokenizer = _tokenizer(pairs, choice)
    end = np.array([tokenizer.size + 1], np.uint32)
    sides = [np.append(tokenizer.encode_array(side), end) for pair in pairs for side in pair]
    lengths = [len(side) for side in sides]
    i = next((i for i, length in enumerate(lengths) if length > max_length), None)
    if i is not None:
        raise TextError(
            f"the {('source', 'target')[i % 2]} of line {i // 2 + 1:,} has {lengths[i]} tokens, "
            "including its end",
            expected=f"at most the model's context of {max_length}",
            remedy=f"remove the line, or train with --context-length {max(lengths)}",
        )
    path = Path(path)
    make_directory(path.parent)
    with atomic_write(path) as file:
        write_ids(file, sides, id_type(tokenizer.size + EXTRA_IDS))
    return tokenizer, PairFile(path, int(end[0]), validation)


def _tokenizer(pairs: Sequence[Pair], choice: TokenizerChoice) -> Tokenizer:
    texts = [side for pair in pairs for side in pair]
    if not choice.is_encoding:
        return choice.learn(texts)
    encoding = open_encoding(choice.name)
    ids = np.concatenate([original_ids(encoding, text) for text in texts])
    return choice.from_encoding(encoding, distinct_ids(ids))
