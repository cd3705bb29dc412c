"""Any tokenizer from its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError, RunError
from heedful.files import damaged, read_checked_json
from heedful.files.belonging import TOKENIZER, check_belongs
from heedful.files.checksums import checksum_of_file, digits
from heedful.text.bpe import BPETokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.huggingface import (
    characters_of,
    first_ids,
    normalise_as_named,
    open_library,
    special_names,
)
from heedful.text.sentencepiece import SentencePieceTokenizer, is_sentencepiece
from heedful.text.tiktoken_encoding import TiktokenTokenizer, encoding_of, open_encoding
from heedful.text.tokenizer import ENVELOPE, FILE_NAME, VERSION, Tokenizer, tokenizer_file
from heedful.text.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import tokenizers


class ForeignTokenizerError(RunError):
    """A whole tokenizer, of a kind that heedful does not have."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read what `Tokenizer.save` wrote, or BPE or WordPiece of Hugging Face.

    BPE is of bytes, or of characters with bytes for unknown ones, as Llama 2 and Mistral have it.

    Args:
        path: the file, or the directory that has it as `tokenizer.json`; a directory without one
            may have `vocab.json` and `merges.txt`, or `vocab.txt`, as older checkpoints do. Or the
            name of a tiktoken encoding, such as `cl100k_base`, each of whose ids then has a row.

    Raises:
        RunError: no such file or encoding; a file that is damaged or of another version.
        ForeignTokenizerError: it is of a kind that heedful does not have.
        TextError: the ranks of an encoding that is named cannot be had.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> CharacterTokenizer("abc").save(directory)
    >>> load_tokenizer(directory).encode("cab")
    [2, 0, 1]
    """
    named, path = Path(path), tokenizer_file(path)
    if path.exists():
        return _of_file(path)
    if not named.exists():
        return _of_name(str(named))
    if library := open_library(path.parent):
        return _of_library(path.parent, library)
    return _of_file(path)  # the error that it is not there


def _of_name(name: str) -> Tokenizer:
    """A tiktoken encoding, where nothing stands at a path."""
    try:
        return TiktokenTokenizer.whole(open_encoding(name))
    except ArgumentError as error:
        raise RunError(f"no file or directory, and {error}") from error


def _of_file(path: Path) -> Tokenizer:
    about = read_checked_json(path, lambda about: ENVELOPE in about)
    if path.name == FILE_NAME:
        check_belongs(path, TOKENIZER, digits(checksum_of_file(path)), path.parent)
    try:
        if isinstance(about, dict) and ENVELOPE in about:
            return _ours(path, about)
        if isinstance(about, dict) and isinstance(about.get("model"), dict):
            return _of_hugging_face(path)
    except RunError:
        raise
    except Exception as error:  # whatever the content of a damaged file makes fail
        raise damaged(path, error) from error
    raise RunError(
        f"{path} is no tokenizer",
        expected="a file that heedful or Hugging Face tokenizers wrote",
        remedy="check the path, or train again",
    )


def _ours(path: Path, about: dict[str, Any]) -> Tokenizer:
    if about[ENVELOPE] != VERSION:
        raise RunError(
            f"{path} has version {about[ENVELOPE]!r} of the tokenizer file",
            expected=f"version {VERSION}",
            cause="it was written by another version of heedful",
            remedy="use that version, or train again",
        )
    if about["kind"] == CharacterTokenizer.kind:
        return CharacterTokenizer(about["characters"])
    if about["kind"] != TiktokenTokenizer.kind:
        raise ArgumentError(f"the kind {about['kind']!r}")
    ids = np.arange(about["size"]) if "size" in about else np.array(about["ids"])
    return TiktokenTokenizer(encoding_of(about["encoding"], about["carried"]), ids)


def _of_hugging_face(path: Path) -> Tokenizer:
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise damaged(path, error) from error
    return _of_library(path, library)


def _of_library(path: Path, library: tokenizers.Tokenizer) -> Tokenizer:
    from tokenizers.models import WordPiece

    directory = path if path.is_dir() else path.parent
    names = special_names(directory)
    try:
        if isinstance(library.model, WordPiece):
            normalise_as_named(directory, library)
            return WordPieceTokenizer(library, names)
        kind = SentencePieceTokenizer if is_sentencepiece(library) else BPETokenizer
        tokenizer = characters_of(library) or kind(library)
    except ArgumentError as error:
        raise ForeignTokenizerError(f"{path} has {error}") from error
    ids = {role: library.token_to_id(name) for role, name in names.items()}
    tokenizer.special = {role: id for role, id in ids.items() if id is not None}
    tokenizer.first = first_ids(library)
    return tokenizer
