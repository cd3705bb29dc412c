"""Hugging Face tokenizer files: loaded from transformers, and exported to transformers."""

import json
import os
import sys

import pytest

from heedful.errors import ArgumentError, RunError
from heedful.text import (
    BPETokenizer,
    CharacterTokenizer,
    TiktokenTokenizer,
    UnsupportedTokenizerError,
    export_tokenizer,
    load_tokenizer,
)
from heedful.text.loading import check_growth

transformers = pytest.importorskip("transformers")

TEXT = "The quick brown fox — naïve café, 火, 🙂!\n\n  jumps it's  over\r\n\tthe lazy dog. 1234 "
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`vocab.json` and `merges.txt` in GPT-2's format, trained on a short text."""
    folder = tmp_path_factory.mktemp("gpt2")
    trained = BPETokenizer.train([TEXT * 9], 300)
    trained.save(folder)
    model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    (folder / "tokenizer.json").unlink()
    vocabulary = {**model["vocab"], END: len(model["vocab"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", "utf-8")
    return folder


@pytest.fixture
def theirs(files):
    return transformers.GPT2Tokenizer(str(files / "vocab.json"), str(files / "merges.txt"))


def test_a_tokenizer_that_transformers_saved(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_tokenizer(tmp_path / "theirs")
    ids = ours.encode(TEXT)
    assert ids == theirs(TEXT, add_special_tokens=False).input_ids
    assert len(ids) < len(TEXT.encode())
    assert ours.decode(ids) == TEXT
    assert ours.size == len(theirs)
    assert ours.special == dict.fromkeys(("bos", "eos", "unk"), theirs.eos_token_id)
    export_tokenizer(ours, tmp_path / "ours", context_length=19)
    reopened = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert reopened.eos_token_id == theirs.eos_token_id
    assert load_tokenizer(tmp_path / "ours").special == ours.special


def test_special_tokens_in_a_file_of_their_own(theirs, tmp_path):
    """As in checkpoints of transformers before version 4.34."""
    theirs.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "lazy"}))
    names = {"eos_token": {"content": END}, "pad_token": "[PAD]"}  # no token of the vocabulary
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    assert load_tokenizer(tmp_path).special == {"eos": theirs.eos_token_id}
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(RunError, match="damaged"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "ours",
    [CharacterTokenizer.train([TEXT]), BPETokenizer.train([TEXT * 9], 290)],
    ids=lambda tokenizer: tokenizer.kind,
)
def test_transformers_opens_ours(ours, tmp_path):
    export_tokenizer(ours, tmp_path / "new", context_length=19)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    ids = ours.encode(TEXT)
    assert theirs(TEXT).input_ids == ids
    assert theirs.decode(ids) == TEXT
    assert len(theirs) == ours.size
    assert theirs.model_max_length == 19
    theirs.save_pretrained(tmp_path / "again")
    for folder in ("new", "again"):
        loaded = load_tokenizer(tmp_path / folder)
        assert type(loaded) is type(ours)
        assert loaded.encode(TEXT) == ids


def test_other_word_level_tokenizers_are_refused(tmp_path):
    export_tokenizer(CharacterTokenizer.train([TEXT]), tmp_path, context_length=19)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    for change in ({"pre_tokenizer": None}, {"normalizer": {"type": "Lowercase"}}):
        path.write_text(json.dumps({**content, **change}), "utf-8")
        with pytest.raises(RunError, match="WordLevel"):
            load_tokenizer(tmp_path)


def test_a_tiktoken_encoding_is_refused(tiny, tmp_path):
    with pytest.raises(ArgumentError, match="--no-tokenizer"):
        export_tokenizer(TiktokenTokenizer.full(tiny), tmp_path / "out", context_length=8)
    assert not (tmp_path / "out").exists()


ROLES = {"eos_token": "<|im_end|>", "unk_token": {"content": END},
         "additional_special_tokens": ["<|im_start|>"]}  # fmt: skip
OLDER = {  # files of checkpoints without a tokenizer.json
    "gpt2": {
        "added_tokens.json": {"<|im_end|>": 302, "<|im_start|>": 301},
        "special_tokens_map.json": ROLES,
        "config.json": {"model_type": "gpt2"},
    },
    "bert": {
        "added_tokens.json": {"<|im_end|>": 10, "<|im_start|>": 9},
        "special_tokens_map.json": {"additional_special_tokens": ["<|im_start|>"]},
        "config.json": {"model_type": "bert"},
    },
}


@pytest.fixture(params=OLDER)
def older(request, files, tmp_path):
    for name in ("vocab.json", "merges.txt") if request.param == "gpt2" else ():
        (tmp_path / name).write_bytes((files / name).read_bytes())
    if request.param == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##s", "sat"]
        (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    for name, content in OLDER[request.param].items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_older_checkpoints_are_converted_by_transformers(older, tmp_path_factory):
    ours, theirs = load_tokenizer(older), transformers.AutoTokenizer.from_pretrained(older)
    for text in (TEXT, f"<|im_start|>user\nThe foxes?<|im_end|>{END}", "<|im_start|> end"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert ours.size == len(theirs)
    roles = {name.removesuffix("_token") for name in theirs.special_tokens_map}
    roles -= {"extra_special_tokens", "additional_special_tokens"}
    assert ours.special == {role: getattr(theirs, f"{role}_token_id") for role in roles}
    saved = tmp_path_factory.mktemp("saved")
    export_tokenizer(ours, saved, context_length=19)
    assert load_tokenizer(saved).encode(TEXT) == ours.encode(TEXT)


def test_damaged_and_large_older_files_are_refused(older, monkeypatch):
    for path in older.glob("vocab.*"):
        content = path.read_bytes()
        path.write_text("{")
        with pytest.raises(RunError, match="damaged"):
            load_tokenizer(older)
        path.write_bytes(content)
    os.truncate(older / "added_tokens.json", 10**11)
    with pytest.raises(RunError, match="100,000,000,000"):
        load_tokenizer(older)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedTokenizerError, match="pip install"):
        load_tokenizer(older)


def replaced(*pairs):
    rules = [{"type": "Replace", "pattern": {"String": a}, "content": b} for a, b in pairs]
    return {"normalizer": {"type": "Sequence", "normalizers": rules}}


def test_replacements_that_follow_each_other_are_refused(tmp_path):
    ligatures = [("ﬁ", "fi"), ("ﬂ", "fl"), ("œ", "oe"), ("æ", "ae"), ("ß", "ss"), ("…", "...")]
    check_growth(replaced(*ligatures), tmp_path)
    with pytest.raises(RunError, match="100 times longer"):
        check_growth(replaced(("a", "b" * 10), ("b", "c" * 10)), tmp_path)
