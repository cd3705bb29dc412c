"""Tokenizers in the format of Llama's and its relatives: the same ids as transformers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_tokenizers import of_bytes, of_characters

from heedful.errors import ArgumentError
from heedful.text import (
    BPETokenizer,
    SentencePieceTokenizer,
    UnsupportedTokenizerError,
    export_tokenizer,
    load_tokenizer,
)

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "Bottle 7 of it", "  two", " one", "tail  ", "\n\tx\r\n", "naïve 火 ☃ 👩‍👩‍👧 é", "", "e\u0301",
    "a<s>b</s> c", "</s>",
]  # fmt: skip


TOKENIZERS = {
    "Llama 2": (of_characters, "PreTrainedTokenizerFast", SentencePieceTokenizer),
    "Mistral": (lambda: of_characters(metaspace=True), "LlamaTokenizer", SentencePieceTokenizer),
    "Llama 3": (of_bytes, "PreTrainedTokenizerFast", BPETokenizer),
    "Qwen": (lambda: of_bytes(qwen=True), "Qwen2Tokenizer", BPETokenizer),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer_pair(request, tmp_path_factory):
    """The name, heedful's tokenizer and transformers', from one directory."""
    make, name, kind = TOKENIZERS[request.param]
    directory = tmp_path_factory.mktemp("tokenizer")
    make().save(str(directory / "tokenizer.json"))
    about = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>"}
    if request.param == "Qwen":
        about = {"tokenizer_class": name, "eos_token": "</s>", "pad_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(about))
    ours = load_tokenizer(directory)
    assert type(ours) is kind
    return request.param, ours, transformers.AutoTokenizer.from_pretrained(directory)


@given(text=st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_ids_spans_and_text_are_those_of_transformers(tokenizer_pair, text):
    name, ours, theirs = tokenizer_pair
    ids = ours.encode(text)
    assert ours.prefix_ids == {"Qwen": (), "Llama 3": (0,)}.get(name, (1,))
    encoding = theirs(text, return_offsets_mapping=True)
    assert [*ours.prefix_ids, *ids] == encoding.input_ids
    assert ours.spans(text) == encoding["offset_mapping"][len(ours.prefix_ids) :]
    if not {*ids} & {*theirs.all_special_ids}:
        decoded = theirs.decode(ids, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == decoded
    assert len(ours.pieces(ids)) == len(ids)
    assert ours.special["eos"] == theirs.eos_token_id


def test_unknown_characters_are_bytes():
    ours = SentencePieceTokenizer(of_characters())
    ids = ours.encode("naïve ☃")
    assert ours.pieces(ids)[-3:] == ["<e2>", "<98>", "<83>"]
    assert ours.decode(ids[:-1]) == "naïve \ufffd"
    assert b"".join(ours.token_bytes(id) for id in ids) == " naïve ☃".encode()
    assert ours.decode([1]) == "<s>"


def test_export_and_reload(tmp_path):
    of_characters().save(str(tmp_path / "tokenizer.json"))
    about = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    ours = load_tokenizer(tmp_path)
    export_tokenizer(ours, tmp_path / "out", 99)
    exported = load_tokenizer(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert exported.encode(text) == ours.encode(text)
        assert theirs(text).input_ids == [*exported.prefix_ids, *exported.encode(text)]
    assert (exported.prefix_ids, exported.special) == (ours.prefix_ids, ours.special)
    assert theirs.model_max_length == 99


def changed_library(change):
    description = json.loads(of_characters().to_str())
    change(description)
    return tokenizers.Tokenizer.from_str(json.dumps(description))


@pytest.mark.parametrize(
    "change",
    [
        lambda description: description["model"].update(byte_fallback=False),
        lambda description: description.update(decoder=None),
        lambda description: description["decoder"]["decoders"].pop(1),
        lambda description: description["decoder"]["decoders"][0].update(content="_"),
        lambda description: description["model"]["vocab"].pop("<0xFE>"),
    ],
    ids=["no bytes", "no decoder", "bytes not decoded", "another space", "a byte missing"],
)
def test_other_tokenizers_are_refused(change, tmp_path):
    library = changed_library(change)
    with pytest.raises(ArgumentError, match="expected BPE of characters with bytes"):
        SentencePieceTokenizer(library)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedTokenizerError, match=r"tokenizer.json has a tokenizer"):
        load_tokenizer(tmp_path)
