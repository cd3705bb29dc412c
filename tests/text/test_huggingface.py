"""Hugging Face tokenizer files: loaded from transformers, and exported to transformers."""

import json

import pytest

from heedful.errors import ArgumentError, RunError
from heedful.text import (
    BPETokenizer,
    CharacterTokenizer,
    TiktokenTokenizer,
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


@pytest.mark.parametrize("config", [True, False], ids=["with names", "without"])
def test_a_vocabulary_and_merges_alone(config, theirs, files, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    if config:
        about = {"eos_token": {"content": END}, "pad_token": "[PAD]",
                 "added_tokens_decoder": {"301": {"content": "[PAD]"}}}  # fmt: skip
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    ours = load_tokenizer(tmp_path)
    assert ours.encode(TEXT) == theirs(TEXT, add_special_tokens=False).input_ids
    assert ours.special == ({"eos": 300, "pad": 301} if config else {})
    assert ours.size == (302 if config else 301)
    ours.save(tmp_path)  # now there is a tokenizer.json too
    assert load_tokenizer(tmp_path).encode(TEXT) == ours.encode(TEXT)


def test_a_prefix_space_is_added_if_the_checkpoint_requires_it(files, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert load_tokenizer(tmp_path).encode("over") == load_tokenizer(files).encode(" over")


@pytest.mark.parametrize(
    ("name", "content"),
    [("vocab.json", "{"), ("merges.txt", "#version: 0.2\nq"), ("tokenizer_config.json", "[]")],
)
def test_damaged_files_are_refused(name, content, files, tmp_path):
    for file in ("vocab.json", "merges.txt"):
        (tmp_path / file).write_bytes((files / file).read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=r"damaged"):
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


OLDER = {  # role files of older checkpoints
    "added_tokens.json": {"<|im_end|>": 302, "<|im_start|>": 301},
    "special_tokens_map.json": {
        "eos_token": "<|im_end|>", "unk_token": {"content": END}, "pad_token": "[PAD]",
        "additional_special_tokens": ["<|im_start|>"],
    },
    "config.json": {"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0},
}  # fmt: skip


@pytest.mark.parametrize("config", [{}, {"eos_token": END}], ids=["alone", "with names"])
def test_the_tokens_of_older_checkpoints(config, files, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    about = {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", **config}}
    for name, content in (OLDER | about).items():
        (tmp_path / name).write_text(json.dumps(content))
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXT, f"<|im_start|>user\nThe fox?<|im_end|>{END}", "<|im_start|> end"):
        assert ours.encode(text) == theirs(text).input_ids
    assert ours.size == 303  # transformers adds a row for [PAD], which the vocabulary lacks
    for role in ("eos", "unk"):
        assert ours.special[role] == getattr(theirs, f"{role}_token_id")


def test_an_older_bert_has_added_tokens(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    files = {
        "added_tokens.json": {"[E2]": 10, "[E1]": 9},
        "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]},
        "config.json": {"model_type": "bert"},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The [E1] cats[E2] sat the[MASK]"
    assert load_tokenizer(tmp_path).inputs(text).ids == theirs(text).input_ids
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": 19}))
    with pytest.raises(RunError, match="id 19"):
        load_tokenizer(tmp_path)


def test_a_special_token_that_the_vocabulary_lacks_has_no_row(files, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    assert (load_tokenizer(tmp_path).size, load_tokenizer(tmp_path).special) == (301, {})


def replaced(*pairs):
    rules = [{"type": "Replace", "pattern": {"String": a}, "content": b} for a, b in pairs]
    return {"normalizer": {"type": "Sequence", "normalizers": rules}}


def test_replacements_that_follow_each_other_are_refused(tmp_path):
    ligatures = [("ﬁ", "fi"), ("ﬂ", "fl"), ("œ", "oe"), ("æ", "ae"), ("ß", "ss"), ("…", "...")]
    check_growth(replaced(*ligatures), tmp_path)
    with pytest.raises(RunError, match="100 times longer"):
        check_growth(replaced(("a", "b" * 10), ("b", "c" * 10)), tmp_path)
