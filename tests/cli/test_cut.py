"""Texts longer than the model's context: refused, or cut with --cut; and no padding is added."""

import json

import pytest
import torch
from command_checks import misused, refused

import heedful
from heedful.loaded import open_heedful
from heedful.text import WordPieceTokenizer

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "the cat sat on the mat, and the dog ran to the cat."
LONG = TEXT * 4
CONTEXT = 32
WORDS = WordPieceTokenizer.train([TEXT], 120)
SMALL = {
    "vocab_size": WORDS.size,
    "intermediate_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}


def saved(model, folder):
    """Save a checkpoint whose tokenizer.json enables padding and truncation to 16 tokens."""
    words = [WORDS.token_bytes(id).decode() for id in range(WORDS.size)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_padding(length=16, pad_token="[PAD]", pad_id=0)
    library.enable_truncation(16)
    library.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


@pytest.fixture(scope="module", params=["ours", "of transformers"])
def bert(request, tmp_path_factory):
    """A BERT that heedful builds, and one that transformers builds."""
    config = transformers.BertConfig(**SMALL, max_position_embeddings=CONTEXT)
    ours = request.param == "ours"
    kind = transformers.BertForMaskedLM if ours else transformers.BertForTokenClassification
    return *saved(kind(config), tmp_path_factory.mktemp("bert")), ours


def recorded(cli, model, *arguments):
    path = model.parent / "recorded.safetensors"
    status, _, error = cli("record", model, *arguments, "--out", path)
    assert status == 0
    return heedful.load(path)[0], error


@pytest.mark.parametrize("texts", [(TEXT,), ("the cat",), ("the cat", "the dog")], ids=" ".join)
def test_every_token_of_a_text_is_read_and_no_padding(texts, bert, cli):
    directory, tokenizer, ours = bert
    second = ["--second", texts[1]] if len(texts) > 1 else []
    expected = tokenizer.convert_ids_to_tokens(
        tokenizer(*texts, padding=False, truncation=False).input_ids
    )
    assert len(expected) != 16
    call, error = recorded(cli, directory, texts[0], *second)
    assert (call.tokens, error) == (expected, "")
    assert call.shape[1:] == (len(expected), len(expected))
    rows = json.loads(cli("heads", directory, texts[0], *second, "--json")[1])
    entropy = call.entropy().nanmean(-1).tolist()
    assert [row["entropy"] for row in rows[:3]] == pytest.approx(entropy, abs=1e-5)
    if ours:
        assert open_heedful(directory).read(*texts).tokens == expected


def test_a_text_that_is_too_long_is_one_line_that_names_the_limit_and_the_option(bert, cli):
    tokens = len(bert[1](LONG, truncation=False).input_ids)
    refused(cli("heads", bert[0], LONG), f"{tokens} tokens", "context of 32", "--cut")
    status, _, error = cli("heads", bert[0], LONG, "--cut")
    assert (status, error) == (0, f"the text is cut: 32 of its {tokens} tokens are read\n")
    assert cli("heads", bert[0], TEXT, "--cut")[2] == ""
    refused(cli("heads", bert[0], "  \n"), "an empty text")
    refused(cli("heads", bert[0], "the cat", "--second", ""), "an empty second text")


@pytest.mark.parametrize(
    "texts",
    [(LONG,), (LONG, TEXT), ("the cat", LONG), (LONG, LONG)],
    ids=["alone", "first", "second", "both"],
)
def test_a_text_is_cut_as_by_transformers_with_its_special_tokens(texts, bert, cli):
    directory, tokenizer, _ = bert
    second = ["--second", texts[1]] if len(texts) > 1 else []
    expected = tokenizer(*texts, truncation=True, max_length=CONTEXT).input_ids
    call, _ = recorded(cli, directory, texts[0], *second, "--cut")
    assert call.tokens == tokenizer.convert_ids_to_tokens(expected)
    assert (call.tokens[0], call.tokens[-1]) == ("[CLS]", "[SEP]")
    assert call.tokens.count("[SEP]") == len(texts)


def test_the_context_of_roberta_excludes_the_padding_position(cli, tmp_path):
    """RoBERTa's table of 22 positions holds 20 tokens; no other setting states that limit."""
    config = transformers.RobertaConfig(**SMALL, max_position_embeddings=22, pad_token_id=1)
    directory, tokenizer = saved(transformers.RobertaForMaskedLM(config), tmp_path)
    refused(cli("heads", directory, LONG), "context of 20")
    call, _ = recorded(cli, directory, LONG, "--cut")
    assert call.shape[1] == 20
    expected = tokenizer(LONG, truncation=True, max_length=20).input_ids
    assert call.tokens == tokenizer.convert_ids_to_tokens(expected)


def test_cut_reads_the_first_tokens_of_a_gpt(night, cli, tmp_path):
    text = "night or day " * 9
    for command in (["explain", text, "--model", night], ["plot", night, text, "--out", tmp_path]):
        refused(cli(*command), "context of 32", "--cut")
        status, _, error = cli(*command, "--cut")
        assert (status, error.startswith("the text is cut: 32 of its ")) == (0, True)


def test_cut_is_refused_without_a_model(night, cli, tmp_path):
    path = tmp_path / "r.safetensors"
    assert cli("record", night, "night", "--out", path)[0] == 0
    misused(cli("heads", path, "--cut"), "whose text is fixed")
    misused(cli("explain", TEXT, "--cut"), "--cut needs --model")
