"""Tokenizers in files: ours and those of Hugging Face read, and ours written for transformers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError, RunError
from heedful.files import (
    damaged,
    make_directory,
    read_checked_json,
    read_json,
    replacing,
    write_json,
)
from heedful.files.checksums import checksum_of_file, digits
from heedful.files.run_identity import TOKENIZER, check_belongs
from heedful.text.bpe import BPETokenizer, SentencePieceTokenizer, is_sentencepiece
from heedful.text.characters import CharacterTokenizer
from heedful.text.tiktoken_encoding import TiktokenTokenizer, encoding_of, open_encoding
from heedful.text.tokenizer import ENVELOPE, FILE_NAME, VERSION, Tokenizer, tokenizer_file
from heedful.text.wordpiece import WordPieceTokenizer, wordpiece_library

if TYPE_CHECKING:
    import tokenizers

CONFIG = "tokenizer_config.json"
WORDS = "vocab.txt"
NORMALISING = {  # what they call a setting → what `tokenizers` does
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


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
    if library := _open_library(path.parent):
        return _of_library(path.parent, library)
    if (sole := path.with_name("tokenizer.model")).exists():
        raise ForeignTokenizerError(
            f"{sole} without {path.name} beside it",
            remedy="AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers writes "
            "one",
        )
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
            return _ours(about)
        if isinstance(about, dict) and isinstance(about.get("model"), dict):
            import tokenizers

            return _of_library(path, tokenizers.Tokenizer.from_file(str(path)))
    except RunError:
        raise
    except Exception as error:  # whatever the content of a damaged file makes fail
        raise damaged(path, error) from error
    raise RunError(
        f"{path} is no tokenizer",
        expected="a file that heedful or Hugging Face tokenizers wrote",
        remedy="check the path, or train again",
    )


def _ours(about: dict[str, Any]) -> Tokenizer:
    if about[ENVELOPE] != VERSION:
        raise ArgumentError(
            f"version {about[ENVELOPE]!r} of the file", expected=f"version {VERSION}"
        )
    if about["kind"] == CharacterTokenizer.kind:
        return CharacterTokenizer(about["characters"])
    if about["kind"] != TiktokenTokenizer.kind:
        raise ArgumentError(f"the kind {about['kind']!r}")
    ids = np.arange(about["size"]) if "size" in about else np.array(about["ids"])
    return TiktokenTokenizer(encoding_of(about["encoding"], about["carried"]), ids)


def _of_library(path: Path, library: tokenizers.Tokenizer) -> Tokenizer:
    from tokenizers.models import WordPiece

    directory = path if path.is_dir() else path.parent
    names = _special_names(directory)
    try:
        if isinstance(library.model, WordPiece):
            _normalise_as_named(directory, library)
            return WordPieceTokenizer(library, names)
        kind = SentencePieceTokenizer if is_sentencepiece(library) else BPETokenizer
        tokenizer = _characters_of(library) or kind(library)
    except ArgumentError as error:
        raise ForeignTokenizerError(f"{path} has {error}") from error
    ids = {role: library.token_to_id(name) for role, name in names.items()}
    tokenizer.special = {role: id for role, id in ids.items() if id is not None}
    tokenizer.first = _first_ids(library)
    return tokenizer


def _open_library(directory: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer of older checkpoints.

    It is byte-level BPE in `vocab.json` and `merges.txt`, or WordPiece in `vocab.txt`.

    Returns:
        None where the directory has no such files.

    Raises:
        RunError: a damaged file.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, vocabulary, merges = (directory / n for n in (WORDS, "vocab.json", "merges.txt"))
    is_words = words.is_file()
    if not is_words and not (vocabulary.is_file() and merges.is_file()):
        return None
    config = _config(directory)
    try:
        if is_words:  # a piece a line; uncased, until `_normalise_as_named` says otherwise
            ids = models.WordPiece.read_file(str(words))
            return wordpiece_library(ids, unknown=_special_names(directory).get("unk"))
        library = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise damaged(words if is_words else vocabulary, error, remedy="fetch it again") from error
    prefixed = bool(config.get("add_prefix_space", False))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, special=True) for token in _added(config)])
    return library


def _special_names(directory: Path) -> dict[str, str]:
    """The special tokens by their role, as `tokenizer_config.json` names them."""
    config = _config(directory)
    named = {role: _content(config.get(f"{role}_token")) for role in ROLES}
    return {role: token for role, token in named.items() if token}


def _first_ids(library: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The ids that a tokenizer puts before a text; what it puts after is left out: a text goes on.

    As in transformers, its file alone says so.
    """
    if library.post_processor is None:
        return ()
    framed = library.encode("a")
    pairs = zip(framed.ids, framed.special_tokens_mask, strict=True)
    return tuple(id for id, _ in itertools.takewhile(lambda pair: pair[1], pairs))


def _normalise_as_named(directory: Path, library: tokenizers.Tokenizer) -> None:
    """Let `tokenizer_config.json` say how a WordPiece tokenizer normalises, as transformers does.

    Its `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` go before `tokenizer.json`.
    """
    from tokenizers.normalizers import BertNormalizer

    config = _config(directory)
    if isinstance(library.normalizer, BertNormalizer):
        for theirs, ours in NORMALISING.items():
            if theirs in config:
                setattr(library.normalizer, ours, config[theirs])


def export_tokenizer(tokenizer: Tokenizer, directory: Path, context_length: int) -> None:
    """Write a tokenizer of ours so that `transformers.AutoTokenizer` opens it.

    Args:
        tokenizer: characters, byte pairs that were trained, or WordPiece.
        directory: it is made where it is missing.
        context_length: the model's context.

    Raises:
        ArgumentError: a tiktoken encoding.
    """
    check_exportable(tokenizer)
    if isinstance(tokenizer, CharacterTokenizer):
        make_directory(directory)
        with replacing(directory / FILE_NAME) as file:
            file.write(_library_of(tokenizer).to_str(pretty=True).encode())
    else:
        tokenizer.save(directory)
    names = {
        f"{role}_token": tokenizer.decode([token]) for role, token in tokenizer.special.items()
    }
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
    }
    if isinstance(tokenizer, WordPieceTokenizer):
        about["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(directory / CONFIG, {**about, "clean_up_tokenization_spaces": False, **names})


def check_exportable(tokenizer: Tokenizer) -> None:
    """Raise an `ArgumentError` for a tokenizer that the files of Hugging Face cannot hold."""
    if isinstance(tokenizer, TiktokenTokenizer):
        raise ArgumentError(
            f"a tokenizer with rows for {tokenizer.size:,} ids of {tokenizer.name}",
            expected="characters or trained byte pairs (bpe)",
            cause="no tokenizer.json can say which of an encoding's ids have rows",
            remedy="export with --no-tokenizer, or train with --tokenizer bpe",
        )


def _library_of(tokenizer: CharacterTokenizer) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {char: id for id, char in enumerate(tokenizer.characters)}
    library = Tokenizer(models.WordLevel(ids))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def _characters_of(library: tokenizers.Tokenizer) -> CharacterTokenizer | None:
    """The characters of a library's tokenizer that `export_tokenizer` made; None for another."""
    characters = sorted(library.get_vocab())
    if any(len(token) > 1 for token in characters):
        return None
    ours = CharacterTokenizer("".join(characters))
    made, found = (json.loads(each.to_str()) for each in (_library_of(ours), library))
    same = all(made[part] == found[part] for part in ("model", "pre_tokenizer", "normalizer"))
    return ours if same else None


def _config(directory: Path) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; nothing where there is none."""
    path = directory / CONFIG
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise RunError(f"{path} does not describe a tokenizer", cause="a damaged file")
    return content


def _added(config: Mapping[str, Any]) -> list[str]:
    """The tokens that were added after training, in the order of their ids."""
    added = config.get("added_tokens_decoder") or {}
    return [text for id in sorted(added, key=int) if (text := _content(added[id]))]


def _content(token: Any) -> str | None:
    """The text of a token, which they write as a string or as a description with `content`."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
