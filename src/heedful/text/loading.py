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
from heedful.text.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import tokenizers

CONFIG = "tokenizer_config.json"
OLDER = ("vocab.txt", "vocab.json", "tokenizer.model")  # if there is no tokenizer.json
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
            all of its ids. transformers converts a directory without `tokenizer.json`.

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
    if any(path.with_name(name).is_file() for name in OLDER):
        return _converted(path.parent)
    return _from_file(path)  # raises the error for a missing file


def _from_file(path: Path) -> Tokenizer:
    about = read_checked_json(path)
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


def _from_library(
    path: Path, library: tokenizers.Tokenizer, names: Mapping[str, str] | None = None
) -> Tokenizer:
    """Return heedful's tokenizer; `names` are the special tokens, by default those of its files."""
    from tokenizers.models import WordPiece

    directory = path if path.is_dir() else path.parent
    names = _special_names(directory) if names is None else names
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


def _converted(directory: Path) -> Tokenizer:
    """Return the tokenizer of an older checkpoint; transformers converts it."""
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedTokenizerError(
            f"{directory} has no {FILE_NAME}, only older files, which transformers converts",
            remedy="pip install 'transformers>=5.0'",
        ) from error
    transformers.logging.set_verbosity_error()
    try:
        for path in directory.iterdir():
            if path.suffix in (".json", ".txt", ".model"):
                read_small(path)  # raises an error for a file that is too large
        theirs = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        names = {
            name.removesuffix("_token"): str(token)
            for name, token in theirs.special_tokens_map.items()
        }
        return _from_library(directory, theirs.backend_tokenizer, names)
    except RunError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise read_error(directory, error, "download it again") from error


def _special_names(directory: Path) -> dict[str, str]:
    """Return the special tokens of `tokenizer_config.json` by their role."""
    config = _read_config(directory)
    tokens = {role: config.get(f"{role}_token") for role in ROLES}
    texts = {  # a token is a string, or a dictionary with its text
        role: token.get("content") if isinstance(token, Mapping) else token
        for role, token in tokens.items()
    }
    return {role: text for role, text in texts.items() if text and isinstance(text, str)}


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

    Older checkpoints have their special tokens in one more file, which takes precedence.
    """
    config = _read_object(directory / CONFIG)
    if "added_tokens_decoder" not in config:
        config |= _read_object(directory / "special_tokens_map.json")
    return config


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty dictionary if the file is missing."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise RunError(f"{path} does not describe a tokenizer", cause="a damaged file")
    return content
