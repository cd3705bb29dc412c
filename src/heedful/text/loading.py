"""Load heedful's and Hugging Face's tokenizer files, and export tokenizers to transformers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError, RunError
from heedful.files import (
    atomic_write,
    make_directory,
    read_checked_json,
    read_error,
    read_json,
    read_small,
    write_json,
)
from heedful.files.checksums import checksum_of_file, digits
from heedful.files.run_identity import TOKENIZER, check_same_run
from heedful.text.bpe import BPETokenizer, SentencePieceTokenizer, is_sentencepiece
from heedful.text.characters import CharacterTokenizer
from heedful.text.tiktoken_encoding import MAX_IDS, TiktokenTokenizer, encoding_from, open_encoding
from heedful.text.tokenizer import ENVELOPE, FILE_NAME, VERSION, Tokenizer, tokenizer_file
from heedful.text.wordpiece import WordPieceTokenizer, wordpiece_library

if TYPE_CHECKING:
    import tokenizers

CONFIG = "tokenizer_config.json"
WORDS = "vocab.txt"
MAX_GROWTH = 20
NORMALISING = {  # setting of transformers → attribute of the normaliser in `tokenizers`
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class UnsupportedTokenizerError(RunError):
    """A valid tokenizer of a type that heedful does not support."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer saved by heedful, or a BPE or WordPiece tokenizer of Hugging Face.

    BPE may be byte-level, or SentencePiece BPE with byte tokens, as in Llama 2 and Mistral.

    Args:
        path: a file, a directory, or the name of a tiktoken encoding, such as `cl100k_base`, to use
            all of its ids. The directory has `tokenizer.json`; in older checkpoints `vocab.txt`, or
            both `vocab.json` and `merges.txt`.

    Raises:
        RunError: no such file or encoding, a damaged file, or a file of another heedful version.
        UnsupportedTokenizerError: heedful does not support this type of tokenizer.
        TextError: an encoding's ranks are neither in tiktoken's cache nor downloadable.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> CharacterTokenizer("abc").save(directory)
    >>> load_tokenizer(directory).encode("cab")
    [2, 0, 1]
    """
    argument, path = Path(path), tokenizer_file(path)
    if path.exists():
        return _from_file(path)
    if not argument.exists():
        try:
            return TiktokenTokenizer.full(open_encoding(str(argument)))
        except ArgumentError as error:
            raise RunError(f"no file or directory, and {error}") from error
    if library := _open_library(path.parent):
        return _from_library(path.parent, library)
    if (model := path.with_name("tokenizer.model")).exists():
        raise UnsupportedTokenizerError(
            f"{model} without {path.name} beside it",
            remedy="AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers writes "
            f"{path.name}",
        )
    return _from_file(path)  # raises the error for a missing file


def _from_file(path: Path) -> Tokenizer:
    about = read_checked_json(path, lambda about: ENVELOPE in about)
    if path.name == FILE_NAME:
        check_same_run(path, TOKENIZER, digits(checksum_of_file(path)), path.parent)
    try:
        if isinstance(about, dict) and ENVELOPE in about:
            return _from_envelope(about)
        if isinstance(about, dict) and isinstance(about.get("model"), dict):
            import tokenizers

            check_growth(about, path)
            return _from_library(path, tokenizers.Tokenizer.from_file(str(path)))
    except RunError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise read_error(path, error) from error
    raise RunError(
        f"{path} is not a tokenizer file",
        expected="a file that heedful or Hugging Face tokenizers wrote",
        remedy="check the path, or train again",
    )


def check_growth(about: Any, path: Path) -> None:
    """Raise a `RunError` if a `tokenizer.json` may make a text over `MAX_GROWTH` times longer.

    A replacement may match the result of another: nine that follow each other, each of one
    character by ten, make one character 10⁹.
    """
    parts, rules = [about.get("normalizer"), about.get("pre_tokenizer")], []
    while parts:
        part = parts.pop()
        if isinstance(part, dict) and isinstance(part.get("content"), str):
            pattern = part.get("pattern")  # None below: a regular expression
            rules.append((pattern.get("String") if isinstance(pattern, dict) else pattern, part))
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    chained = largest = 1.0
    for pattern, rule in rules:
        times = len(rule["content"]) / max(1, len(str(pattern or "")))
        others = [other for other, each in rules if each is not rule]
        if any(other is None or str(other) in rule["content"] for other in others):
            chained *= max(1.0, times)
        else:
            largest = max(largest, times)
    if chained * largest > MAX_GROWTH:
        raise RunError(
            f"{path} has replacements that may make a text {chained * largest:,.0f} times longer",
            expected=f"at most {MAX_GROWTH} times",
            cause="a damaged file",
        )


def _from_envelope(about: dict[str, Any]) -> Tokenizer:
    """Return a tokenizer from heedful's own format."""
    if about[ENVELOPE] != VERSION:
        raise ArgumentError(
            f"version {about[ENVELOPE]!r} of the file", expected=f"version {VERSION}"
        )
    if about["kind"] == CharacterTokenizer.kind:
        return CharacterTokenizer(about["characters"])
    if about["kind"] != TiktokenTokenizer.kind:
        raise ArgumentError(f"an unknown kind of tokenizer, {about['kind']!r}")
    if about.get("size", 0) > MAX_IDS:
        raise ArgumentError(f"{about['size']:,} ids", expected=f"at most {MAX_IDS:,}")
    ids = np.arange(about["size"]) if "size" in about else np.array(about["ids"])
    return TiktokenTokenizer(encoding_from(about["encoding"], about["carried"]), ids)


def _from_library(path: Path, library: tokenizers.Tokenizer) -> Tokenizer:
    from tokenizers.models import WordPiece

    directory = path if path.is_dir() else path.parent
    names = _special_names(directory)
    try:
        if isinstance(library.model, WordPiece):
            _apply_normalisation(directory, library)
            return WordPieceTokenizer(library, names)
        kind = SentencePieceTokenizer if is_sentencepiece(library) else BPETokenizer
        tokenizer = _character_tokenizer(library) or kind(library)
    except ArgumentError as error:
        raise UnsupportedTokenizerError(f"{path} has {error}") from error
    ids = {role: library.token_to_id(name) for role, name in names.items()}
    tokenizer.special = {role: id for role, id in ids.items() if id is not None}
    tokenizer.prefix_ids = _prefix_ids(library)
    return tokenizer


def _open_library(directory: Path) -> tokenizers.Tokenizer | None:
    """Open the tokenizer of an older checkpoint; return None if the directory has none.

    Such a tokenizer is BPE in `vocab.json` and `merges.txt`, or WordPiece in `vocab.txt`. A damaged
    file raises a `RunError`.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, vocabulary, merges = (directory / n for n in (WORDS, "vocab.json", "merges.txt"))
    is_words = words.is_file()
    if not is_words and not (vocabulary.is_file() and merges.is_file()):
        return None
    config = _read_config(directory)
    try:
        for path in (words,) if is_words else (vocabulary, merges):
            read_small(path)  # raises an error for a file that is too large
        if is_words:  # one piece per line; `_apply_normalisation` sets `lowercase` later
            ids = models.WordPiece.read_file(str(words))
            library = wordpiece_library(ids, unknown=_special_names(directory).get("unk"))
        else:
            library = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
            has_prefix = bool(config.get("add_prefix_space", False))
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=has_prefix)
            library.decoder = decoders.ByteLevel()
        added = _added_tokens(config)
        special = [*_special_names(directory).values(), *_additional(config)]
        known = [text for text in special if library.token_to_id(text) is not None]
        tokens = dict.fromkeys([*added, *known])
        library.add_special_tokens([AddedToken(text, special=True) for text in tokens])
    except Exception as error:  # `tokenizers` raises bare Exception
        raise read_error(
            words if is_words else vocabulary, error, remedy="download it again"
        ) from error
    for text, id in added.items():
        if id != library.token_to_id(text):
            raise RunError(
                f"token {text!r} with id {id} in {directory}",
                expected=f"id {library.token_to_id(text)}, the next after the vocabulary",
                cause="files of different tokenizers",
            )
    return library


def _special_names(directory: Path) -> dict[str, str]:
    """Return the special tokens of `tokenizer_config.json` by their role."""
    config = _read_config(directory)
    tokens = {role: _token_text(config.get(f"{role}_token")) for role in ROLES}
    return {role: token for role, token in tokens.items() if token}


def _prefix_ids(library: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Return the special ids that a tokenizer adds before a text, as its file defines them.

    Ids added after a text are left out, because generation continues the text.
    """
    if library.post_processor is None:
        return ()
    encoding = library.encode("a")
    pairs = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    return tuple(id for id, _ in itertools.takewhile(lambda pair: pair[1], pairs))


def _apply_normalisation(directory: Path, library: tokenizers.Tokenizer) -> None:
    """Apply the normalisation settings of `tokenizer_config.json` to a WordPiece tokenizer.

    These settings take precedence over `tokenizer.json`, as in transformers.
    """
    from tokenizers.normalizers import BertNormalizer

    config = _read_config(directory)
    if isinstance(library.normalizer, BertNormalizer):
        for name, attribute in NORMALISING.items():
            if name in config:
                setattr(library.normalizer, attribute, config[name])


def export_tokenizer(tokenizer: Tokenizer, directory: Path, context_length: int) -> None:
    """Write one of heedful's tokenizers in the format of `transformers.AutoTokenizer`.

    Args:
        tokenizer: a character tokenizer, a trained BPE tokenizer, or WordPiece.
        directory: the output directory; it is created if missing.
        context_length: the model's context length.

    Raises:
        ArgumentError: the tokenizer is a tiktoken encoding.
        SaveError: a file cannot be written.
    """
    check_exportable(tokenizer)
    if isinstance(tokenizer, CharacterTokenizer):
        make_directory(directory)
        with atomic_write(directory / FILE_NAME) as file:
            file.write(_character_library(tokenizer).to_str(pretty=True).encode())
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
    """Raise an `ArgumentError` for a tokenizer that Hugging Face's format cannot represent."""
    if isinstance(tokenizer, TiktokenTokenizer):
        raise ArgumentError(
            f"a tokenizer with rows for {tokenizer.size:,} ids of {tokenizer.name}",
            expected="characters or trained byte pairs (bpe)",
            cause="tokenizer.json cannot store which of an encoding's ids have rows",
            remedy="export with --no-tokenizer, or train with --tokenizer bpe",
        )


def _character_library(tokenizer: CharacterTokenizer) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {char: id for id, char in enumerate(tokenizer.characters)}
    library = Tokenizer(models.WordLevel(ids))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def _character_tokenizer(library: tokenizers.Tokenizer) -> CharacterTokenizer | None:
    """Return the character tokenizer that `export_tokenizer` wrote; None for other tokenizers."""
    characters = sorted(library.get_vocab())
    if any(len(token) > 1 for token in characters):
        return None
    tokenizer = CharacterTokenizer("".join(characters))
    exported, loaded = (json.loads(t.to_str()) for t in (_character_library(tokenizer), library))
    parts = ("model", "pre_tokenizer", "normalizer")
    return tokenizer if all(exported[part] == loaded[part] for part in parts) else None


def _read_config(directory: Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`; an empty dictionary if it is missing.

    Older checkpoints have their special and added tokens in two more files, which take precedence.
    """
    config = _read_object(directory / CONFIG)
    if "added_tokens_decoder" not in config:
        config |= _read_object(directory / "special_tokens_map.json")
        added = _read_object(directory / "added_tokens.json")
        config["added_tokens_decoder"] = {id: text for text, id in added.items()}
    return config


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty dictionary if the file is missing."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise RunError(f"{path} does not describe a tokenizer", cause="a damaged file")
    return content


def _added_tokens(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the tokens that were added after training, in their order."""
    added = config.get("added_tokens_decoder") or {}
    texts = {int(id): _token_text(added[id]) for id in sorted(added, key=int)}
    return {text: id for id, text in texts.items() if text}


def _additional(config: Mapping[str, Any]) -> list[str]:
    """Return the special tokens without a role."""
    texts = map(_token_text, config.get("additional_special_tokens") or [])
    return [text for text in texts if text]


def _token_text(token: Any) -> str | None:
    """Return the text of a token: a string, or the entry `content` of a dictionary."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
