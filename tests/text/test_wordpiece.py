"""WordPiece: transformers' ids on any text, from every file format; training; pairs."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, TextError
from heedful.text import WordPieceTokenizer, export_tokenizer, load_tokenizer
from heedful.text.wordpiece import wordpiece_library

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = """The quick brown Fox jumps over the lazy dog; Transformers, robots in disguise!
Naïve cafés, Ångström, İstanbul, straße, ΑΣΣ, ﬁne. 火车站 ひらがな 한국어 हिन्दी عربى 🙂
$3.50 (a+b)=c
"""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def words_of(lowercase):
    """A vocabulary, in the order of its ids."""
    trained = WordPieceTokenizer.train([TEXT * 9], 190, lowercase=lowercase)
    return [trained.token_bytes(id).decode() for id in range(trained.size)]


@pytest.fixture(scope="module", params=["cased", "uncased"])
def pair(request, tmp_path_factory):
    """transformers' tokenizer and heedful's, from the same vocab.txt."""
    directory = tmp_path_factory.mktemp("wordpiece") / request.param
    directory.mkdir()
    is_uncased = request.param == "uncased"
    (directory / "vocab.txt").write_text("\n".join(words_of(is_uncased)) + "\n", "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": is_uncased}))
    (directory / "config.json").write_text('{"model_type": "bert"}')
    return transformers.BertTokenizer.from_pretrained(directory), load_tokenizer(directory)


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.text(alphabet="aAéÉîİßΣςｆ火ｶ\u0301\u00ad\u200d\ufffd\x00\x7f\t\n '-.,$#", max_size=12),
        st.sampled_from([*TEXT.split(), *SPECIAL, "##ing", "##", "[mask]", "a" * 101, "火" * 3]),
    ),
    max_size=6,
).map(" ".join)


@given(TEXTS)
@settings(max_examples=400)
def test_ids_are_those_of_transformers_on_any_text(pair, text):
    theirs, ours = pair
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids


@given(TEXTS, TEXTS.filter(bool))  # an empty second text is none to transformers
@settings(max_examples=100)
def test_special_tokens_of_texts_and_pairs_are_those_of_transformers(pair, text, second):
    theirs, ours = pair
    for actual, expected in (
        (ours.inputs(text), theirs(text)),
        (ours.inputs(text, second), theirs(text, second)),
    ):
        assert actual.ids == expected.input_ids
        assert actual.segments == expected.token_type_ids


@pytest.mark.parametrize("form", ["tokenizer.json", "saved by us", "exported", "no config"])
def test_each_form_of_file(form, pair, tmp_path):
    theirs, ours = pair
    if form == "tokenizer.json":
        theirs.save_pretrained(tmp_path)
    elif form == "exported":
        export_tokenizer(ours, tmp_path, context_length=64)
    else:
        ours.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, WordPieceTokenizer)
    assert loaded.encode(TEXT) == theirs(TEXT, add_special_tokens=False).input_ids
    roles = ("pad", "unk", "cls", "sep", "mask")
    assert loaded.special == {role: getattr(theirs, f"{role}_token_id") for role in roles}
    assert loaded.size == len(theirs) == 190
    if form == "exported":
        opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
        expected, actual = opened(TEXT, "a [MASK]"), ours.inputs(TEXT, "a [MASK]")
        assert (expected.input_ids, expected.token_type_ids) == (actual.ids, actual.segments)
        assert (opened.mask_token, opened.pad_token_id) == ("[MASK]", ours.special["pad"])
        assert opened.model_max_length == 64


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
        {},
    ],
    ids=str,
)
def test_settings_of_the_configuration(settings, tmp_path):
    """They take precedence over a different tokenizer.json, as in transformers."""
    words = [*SPECIAL, "naive", "naïve", "Naïve", "Naive", "火车", "火", "车", "##车"]
    ids = {word: id for id, word in enumerate(words)}
    WordPieceTokenizer(wordpiece_library(ids)).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs, ours = transformers.BertTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    text = "Naïve naïve 火车"
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids


def test_special_tokens_of_other_names(tmp_path):
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "red"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    names = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    config = {f"{role}_token": token for role, token in names.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    ours = load_tokenizer(tmp_path)
    assert ours.pieces(ours.inputs("Red <mask> blue").ids) == ["<s>", "red", "<mask>", "<unk>",
                                                              "</s>"]  # fmt: skip
    ours.save(tmp_path)
    assert load_tokenizer(tmp_path).special == ours.special


def test_training_is_deterministic_across_processes():
    """Although the library's trainer numbers characters within words at random."""
    program = (
        "from heedful.text import BPETokenizer, WordPieceTokenizer, python_reference\n"
        "for kind in (BPETokenizer, WordPieceTokenizer):\n"
        "    trained = kind.train([python_reference()[:99_000]], 700)\n"
        "    print(*(trained.token_bytes(i) for i in range(trained.size)))"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout
    assert len(first.stdout.split("' b'")) > 1200


def test_learned_pieces_are_used():
    tokenizer = WordPieceTokenizer.train(["low lower lowest slower slow " * 9], 30)
    assert tokenizer.pieces(tokenizer.encode("Lowest, slower")) == ["lowest", "[UNK]", "slower"]
    assert tokenizer.decode(tokenizer.encode("LOWEST slowest")) == "lowest slowest"
    assert tokenizer.size <= 30
    assert tokenizer.token_bytes(4) == b"[MASK]"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: WordPieceTokenizer.train(["abc"], 7), ArgumentError, "7; expected 8 or more"),
        (lambda: WordPieceTokenizer.train([" \n"], 99), TextError, "without words"),
        (lambda: WordPieceTokenizer(wordpiece_library({"[UNK]": 0, "a": 1})), ArgumentError,
         r"without \[CLS\], \[SEP\]"),
    ],
    ids=["small", "empty", "special"],
)  # fmt: skip
def test_invalid_training_and_vocabularies_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
