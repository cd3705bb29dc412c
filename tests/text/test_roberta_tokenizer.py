"""Byte-level BPE with RoBERTa's special tokens: transformers' ids, with and without truncation."""

import json
import shutil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.text import RobertaTokenizer, WordPieceTokenizer, load_tokenizer

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "The capital of France is Paris, of Spain Madrid; naïve café 火 🙂!\n"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = st.lists(
    st.one_of(st.text(max_size=9), st.sampled_from([*TEXT.split(), *SPECIAL, " ", "<s"])),
    max_size=7,
).map("".join)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`vocab.json` and `merges.txt`, learned from a short text."""
    folder = tmp_path_factory.mktemp("byte-pairs")
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator([TEXT * 9], 320, special_tokens=SPECIAL, show_progress=False)
    library.save_model(str(folder))
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    return folder


@pytest.fixture(scope="module")
def pair(files, tmp_path_factory):
    """transformers' tokenizer and heedful's; <mask> includes the space before it, as RoBERTa's."""
    folder = tmp_path_factory.mktemp("roberta")
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    theirs = transformers.RobertaTokenizer.from_pretrained(files, mask_token=mask)
    theirs.save_pretrained(folder)
    return theirs, RobertaTokenizer(load_tokenizer(folder))


@given(TEXTS, st.none() | TEXTS.filter(bool))
@settings(max_examples=150)
def test_ids_are_those_of_transformers_on_any_text_and_pair(pair, text, second):
    theirs, ours = pair
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    inputs = ours.inputs(text, second)
    assert inputs.ids == theirs(text, second).input_ids
    assert inputs.segments == [0] * len(inputs.ids)  # RoBERTa has one segment


@given(TEXTS.filter(str.strip), st.none() | TEXTS.filter(str.strip), st.integers(6, 20))
@settings(max_examples=150)
def test_truncation_equals_that_of_transformers(pair, words, text, second, limit):
    for theirs, ours in (pair, words):
        assume(all(ours.encode(part) for part in (text, second) if part))
        inputs = ours.inputs(text, second, max_tokens=limit)
        expected = theirs(text, second, truncation=True, max_length=limit)
        assert inputs.ids == expected.input_ids
        assert inputs.segments == expected.get("token_type_ids", [0] * len(inputs.ids))
    with pytest.raises(ArgumentError, match="room for 1 tokens beside the special tokens"):
        pair[1].inputs("Paris", "Madrid", max_tokens=5)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wordpiece")
    ours = WordPieceTokenizer.train([TEXT * 9], 150)
    lines = [ours.token_bytes(id).decode() for id in range(ours.size)]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return transformers.BertTokenizer.from_pretrained(folder), ours


def test_older_files_have_the_same_special_tokens(files, pair, tmp_path):
    shutil.copytree(files, tmp_path / "old")
    theirs = transformers.RobertaTokenizer.from_pretrained(files)  # <mask> includes no space
    ours = RobertaTokenizer(load_tokenizer(tmp_path / "old"))
    text = "The <mask> of France"
    assert ours.inputs(text, "Paris").ids == theirs(text, "Paris").input_ids
    roles = ("bos", "eos", "cls", "pad", "sep", "unk", "mask")
    assert ours.special == {role: getattr(theirs, f"{role}_token_id") for role in roles}
    theirs.save_pretrained(tmp_path / "nameless")
    (tmp_path / "nameless" / "tokenizer_config.json").unlink()
    nameless = RobertaTokenizer(load_tokenizer(tmp_path / "nameless"))
    assert nameless.special.items() <= ours.special.items()
    assert nameless.special["mask"] == theirs.mask_token_id
    names = {"mask_token": "<mask>", "cls_token": "</s>", "sep_token": "<s>"}
    (tmp_path / "old" / "tokenizer_config.json").write_text(json.dumps(names))
    swapped = RobertaTokenizer(load_tokenizer(tmp_path / "old"))
    assert swapped.pieces(swapped.inputs("of").ids) == ["</s>", "of", "<s>"]


def test_an_appended_token_replaces_the_mask(pair, words):
    theirs, ours = pair
    [spaced] = theirs(" of", add_special_tokens=False).input_ids
    [plain] = theirs("of", add_special_tokens=False).input_ids
    assert ours.append_token("capital ", spaced) == "capital of"
    assert ours.append_token("capital ", plain) == "capitalof"
    pieces = words[1].pieces(range(words[1].size))
    inner = next(id for id, piece in enumerate(pieces) if piece.startswith("##"))
    assert words[1].append_token("ab ", inner) == "ab" + pieces[inner][2:]


@pytest.mark.parametrize("kind", [0, 1], ids=["bpe", "wordpiece"])
def test_padding_and_truncation_of_a_file_are_turned_off(kind, pair, words, tmp_path):
    """Files saved after training may set both; transformers is compared with both off."""
    (pair, words)[kind][0].save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(path))
    library.no_padding()
    library.no_truncation()
    expected = [library.encode(text, add_special_tokens=False).ids for text in ("Paris", TEXT * 5)]
    library.enable_padding(length=16)
    library.enable_truncation(16)
    library.save(str(path))
    ours = load_tokenizer(tmp_path)
    assert [ours.encode(text) for text in ("Paris", TEXT * 5)] == expected
    ours.save(path)
    saved = tokenizers.Tokenizer.from_file(str(path))
    assert (saved.padding, saved.truncation) == (None, None)


def test_the_spans_of_a_pair_whose_first_text_is_one_token(pair, words):
    for tokenizer in (pair[1], words[1]):
        spans = tokenizer.input_spans("a", "a")
        assert [span for span in spans if span] == [(0, 0, 1), (1, 0, 1)]
        assert len(spans) == len(tokenizer.inputs("a", "a").ids)
