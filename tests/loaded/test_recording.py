"""`opened.record(text)`, compared with `heedful.record` around `model(…)` on the same inputs."""

import warnings
from pathlib import Path

import pytest
import torch
from small_models import CONTEXT, LETTERS, WORDS
from torch import nn

import heedful
from heedful.errors import ArgumentError, RunError, TextError
from heedful.loaded import LoadedGPT, LoadedTransformers, TruncationWarning
from heedful.models import GPTConfig
from heedful.recording import Recording
from heedful.translate import translate


@pytest.mark.parametrize("text", [None, ["a", "b"], b"a", 7])
def test_other_types_than_text_are_refused(text, gpt, bert):
    for opened in (gpt, bert):
        with pytest.raises(ArgumentError, match=r"a text that is .*; expected one string"):
            opened.record(text)


def compare(recording, model, *arguments, **keywords):
    """Assert that a recording has the weights of a pass with these inputs, bit for bit."""
    with torch.inference_mode(), heedful.record(model) as reference:
        model(*arguments, **keywords)
    assert len(recording) == len(reference) > 0
    for call, expected in zip(recording, reference, strict=True):
        assert (call.name, call.kind, call.proof) == (expected.name, expected.kind, expected.proof)
        torch.testing.assert_close(call.weights(), expected.weights(), atol=0, rtol=0)


def test_verification_repeats_the_recorded_pass(bert, monkeypatch):
    passes, verify = [], Recording.verify

    def verify_and_store(self, model, inputs, **rest):
        with torch.no_grad():
            passes.append((inputs, model(**inputs).logits))
        return verify(self, model, inputs, **rest)

    monkeypatch.setattr(Recording, "verify", verify_and_store)
    shares = []
    recording = bert.record("the cat", "sat", verify=True, progress=shares.append)
    [(inputs, logits)] = passes
    model_inputs = bert.read("the cat", "sat")
    assert [*inputs] == ["ids", "segments"]
    torch.testing.assert_close(logits, bert.model(**model_inputs.inputs).logits)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    compare(recording, bert.model, **model_inputs.inputs)
    assert {call.layout for call in recording} == {"told"}


def test_a_recording_of_a_gpt(gpt):
    recording = gpt.record("a bad cab")
    compare(recording, gpt.model, torch.tensor([[" abcdefg".index(c) for c in "a bad cab"]]))
    assert recording.tokens == [[*"a·bad·cab"]]
    assert recording[0].tokens == recording.tokens[0]


@pytest.mark.parametrize("texts", [("the cat",), ("the cat", "sat on")], ids=len)
def test_a_recording_of_a_bert(texts, bert):
    recording = bert.record(*texts)
    ids, segments = WORDS.inputs(*texts)
    assert set(segments) == set(range(len(texts)))
    compare(recording, bert.model, torch.tensor([ids]), segments=torch.tensor([segments]))
    [tokens] = recording.tokens
    assert (tokens[0], tokens[-1], tokens.count("[SEP]")) == ("[CLS]", "[SEP]", len(texts))


def test_a_recording_of_an_encoder_decoder_and_its_target(seq2seq):
    recording = seq2seq.record(" cab ")
    source, config = [" abcdefg".index(letter) for letter in "cab"], seq2seq.model.config
    target = translate(seq2seq.model, [source])[0][0].ids
    ids = [config.begin, *target][:CONTEXT]
    compare(recording, seq2seq.model, torch.tensor([[*source, config.end]]), torch.tensor([ids]))
    assert recording.tokens == [[*"cab■"]]
    [target_tokens] = recording.target_tokens
    assert target_tokens == ["▶", *seq2seq.tokenizer.pieces(target)][:CONTEXT]
    tokens = {"self": [*"cab■"], "causal": target_tokens}
    for call in recording:
        is_cross = call.kind == "cross"
        assert call.query_tokens == tokens["causal" if is_cross else call.kind]
        assert call.key_tokens == tokens["self" if is_cross else call.kind]
    assert {call.kind for call in recording} == {"self", "causal", "cross"}


def test_options_are_those_of_record(gpt):
    recording = gpt.record("a bad cab", layers=[1], heads=[2, 0], values=True, dtype=torch.float64)
    assert [(call.layer, call.heads) for call in recording] == [(1, [2, 0])]
    assert recording[0].value is not None
    assert recording[0].causes.query.dtype == torch.float64
    with pytest.raises(ArgumentError, match="no layer 2"):
        gpt.record("a", layers=[2])
    with pytest.raises(TypeError, match="laiers"):
        gpt.record("a", laiers=[1])
    assert not torch.is_inference_mode_enabled()


def test_a_text_that_is_too_long(gpt, bert, seq2seq):
    words = "the cat sat on the mat the cat sat on the mat"
    for opened, text in ((gpt, "abc" * 5), (seq2seq, "abc" * 5), (bert, words)):
        with pytest.raises(TextError, match=r"at most .* context of 13.* cut=True"):
            opened.record(text)
        with pytest.warns(TruncationWarning, match=r"13 of its 1[456] tokens"):
            recording = opened.record(text, cut=True)
        assert recording[0].shape == (3, 13, 13)
    with pytest.warns(TruncationWarning):
        assert gpt.record("gfedcbagfedcba", cut=True).tokens == [[*"gfedcbagfedcb"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpt.record("abc", cut=True)


def test_texts_that_cannot_be_read(gpt, bert, seq2seq):
    for opened in (gpt, bert, seq2seq):
        with pytest.raises(TextError, match="an empty text"):
            opened.record("")
    for opened in (gpt, seq2seq):
        with pytest.raises(ArgumentError, match="a second text"):
            opened.record("a", "b")
    with pytest.raises(TextError, match="'×'"):
        gpt.record("×")


def test_embedding_and_position_tables(gpt, bert, seq2seq):
    for opened, tokenizer in ((gpt, LETTERS), (bert, WORDS)):
        vectors = opened.vectors()
        assert vectors.words == tokenizer.pieces(range(tokenizer.size))
        assert (vectors.table == opened.model.tokens.weight.detach().numpy()).all()
    with pytest.raises(ArgumentError, match="one table of tokens"):
        seq2seq.vectors()
    for opened, kind, table in (
        (gpt, "rotary", gpt.model.cosines),
        (bert, "learned", bert.model.positions),
        (seq2seq, "sinusoidal", seq2seq.model.positions),
    ):
        assert (opened.positions[0], opened.positions[1] is table) == (kind, True)


class Failing(nn.Module):
    """A model whose pass raises an error, or has no attention."""

    config = GPTConfig(vocabulary=8, context_length=CONTEXT, width=12, layers=2, heads=3)

    def __init__(self, error=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.error = error

    def forward(self, *_, **__):
        if self.error:
            raise self.error


def test_errors_in_a_pass():
    def check_error(kind, error, expected, words):
        opened = kind(Failing(error), LETTERS, Path())
        inputs = LoadedGPT(opened.model, LETTERS, Path()).read("ab")
        with pytest.raises(expected, match=words):
            opened.record_inputs(inputs)

    check_error(
        LoadedTransformers, KeyError("pixels"), RunError, "cannot run a Failing: KeyError: 'pixels'"
    )
    check_error(LoadedTransformers, TextError("an empty text"), TextError, "an empty text")
    check_error(LoadedGPT, KeyError("pixels"), KeyError, "pixels")  # unchanged by heedful's models
    with pytest.warns(UserWarning, match="Failing"):
        check_error(LoadedGPT, None, RunError, "no attention in a Failing")
