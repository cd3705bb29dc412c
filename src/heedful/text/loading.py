"""Any tokenizer from its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError, RunError, TextError
from heedful.files import read_json
from heedful.text.bpe import BPETokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.huggingface import (
    characters_of,
    first_ids,
    normalise_as_named,
    open_library,
    special_names,
    special_tokens,
)
from heedful.text.sentencepiece import SentencePieceTokenizer, is_sentencepiece
from heedful.text.tiktoken_encoding import TiktokenTokenizer, open_encoding
from heedful.text.tokenizer import ENVELOPE, VERSION, Tokenizer, tokenizer_file
from heedful.text.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import tokenizers

SENTENCEPIECE = "tokenizer.model"  # its own file, which its own library reads


class ForeignTokenizerError(RunError):
    """A whole tokenizer, of a kind that heedful does not have."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read what `Tokenizer.save` wrote, or BPE or WordPiece of Hugging Face.

    BPE is of bytes, or of characters with bytes for unknown ones, as Llama 2 and Mistral have it.

    Args:
        path: the file, or the directory that has it as `tokenizer.json`; a directory without one
            may have `vocab.json` and `merges.txt`, or `vocab.txt`, as older checkpoints do.

    Raises:
        RunError: the file is missing, damaged or of a newer version.
        ForeignTokenizerError: it is of a kind that heedful does not have.
        TextError: the ranks of its tiktoken encoding cannot be had.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> CharacterTokenizer("abc").save(directory)
    >>> load_tokenizer(directory).encode("cab")
    [2, 0, 1]
    """
    path = tokenizer_file(path)
    if not path.exists() and (library := open_library(path.parent)):
        return _of_library(path.parent, library)
    if not path.exists() and (sole := path.with_name(SENTENCEPIECE)).exists():
        raise ForeignTokenizerError(
            f"{sole} without {path.name} beside it",
            expected=f"the tokenizer as {path.name}",
            remedy="AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers writes "
            "one",
        )
    about = read_json(path)
    if not isinstance(about, dict):
        raise _foreign(path)
    if ENVELOPE not in about:
        return _of_hugging_face(path, about)
    if about[ENVELOPE] != VERSION:
        raise RunError(
            f"{path} has version {about[ENVELOPE]!r} of the tokenizer file",
            expected=f"version {VERSION}",
            cause="it was written by a newer heedful",
            remedy="update heedful",
        )
    try:
        return _ours(about)
    except TextError:  # the file is whole, its encoding's ranks are missing
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise _damaged(path, error) from error


def _ours(about: dict[str, Any]) -> Tokenizer:
    if about["kind"] == CharacterTokenizer.kind:
        return CharacterTokenizer(about["characters"])
    if about["kind"] != TiktokenTokenizer.kind:
        raise ArgumentError(f"the kind {about['kind']!r}")
    ids = np.arange(about["size"]) if "size" in about else np.array(about["ids"])
    return TiktokenTokenizer(open_encoding(about["encoding"]), ids)


def _of_hugging_face(path: Path, about: dict[str, Any]) -> Tokenizer:
    import tokenizers

    if not isinstance(about.get("model"), dict):
        raise _foreign(path)
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise _damaged(path, error) from error
    return _of_library(path, library)


def _of_library(path: Path, library: tokenizers.Tokenizer) -> Tokenizer:
    from tokenizers.models import WordPiece

    directory = path if path.is_dir() else path.parent
    try:
        if isinstance(library.model, WordPiece):
            normalise_as_named(directory, library)
            return WordPieceTokenizer(library, special_names(directory))
        tokenizer = characters_of(library) or _of_pairs(library)
    except ArgumentError as error:
        raise ForeignTokenizerError(f"{path} has {error}") from error
    tokenizer.special = special_tokens(directory, library)
    tokenizer.first = first_ids(library)
    return tokenizer


def _of_pairs(library: tokenizers.Tokenizer) -> Tokenizer:
    """Byte pairs, of bytes or of characters with bytes for those it does not know."""
    return (SentencePieceTokenizer if is_sentencepiece(library) else BPETokenizer)(library)


def _foreign(path: Path) -> RunError:
    return RunError(
        f"{path} is no tokenizer",
        expected="a file that heedful or Hugging Face tokenizers wrote",
        remedy="check the path, or train again",
    )


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"cannot read the tokenizer in {path}: {error!r}",
        cause="a damaged file",
        remedy="restore it, or train again",
    )
