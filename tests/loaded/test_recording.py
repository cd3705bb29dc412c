"""`opened.record(text)` against `heedful.record` around the model, with inputs built by hand."""

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


def equal(recording, model, *arguments, **keywords):
    """Compare with the calls of a pass by hand: the same maps, to the last bit."""
    with torch.inference_mode(), heedful.record(model) as by_hand:
        model(*arguments, **keywords)
    assert len(recording) == len(by_hand) > 0
    for call, expected in zip(recording, by_hand, strict=True):
        assert (call.name, call.kind, call.proof) == (expected.name, expected.kind, expected.proof)
        torch.testing.assert_close(call.weights(), expected.weights(), atol=0, rtol=0)


def test_what_is_verified_is_the_pass_that_was_recorded(bert, monkeypatch):
    passes, verify = [], Recording.verify

    def watched(self, model, inputs, **rest):
        with torch.no_grad():
            passes.append((inputs, model(**inputs).logits))
        return verify(self, model, inputs, **rest)

    monkeypatch.setattr(Recording, "verify", watched)
    shares = []
    recording = bert.record("the cat", "sat", verify=True, progress=shares.append)
    [(inputs, logits)] = passes
    again = bert.read("the cat", "sat")
    assert [*inputs] == ["ids", "segments"]
    torch.testing.assert_close(logits, bert.model(**again.inputs).logits)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    equal(recording, bert.model, **again.inputs)
    assert {call.layout for call in recording} == {"told"}


def test_of_a_gpt(gpt):
    recording = gpt.record("a bad cab")
    equal(recording, gpt.model, torch.tensor([[" abcdefg".index(c) for c in "a bad cab"]]))
    assert recording.tokens == [[*"a·bad·cab"]]
    assert recording[0].tokens == recording.tokens[0]


@pytest.mark.parametrize("texts", [("the cat",), ("the cat", "sat on")], ids=len)
def test_of_a_bert(texts, bert):
    recording = bert.record(*texts)
    ids, segments = WORDS.inputs(*texts)
    assert set(segments) == set(range(len(texts)))
    equal(recording, bert.model, torch.tensor([ids]), segments=torch.tensor([segments]))
    [tokens] = recording.tokens
    assert (tokens[0], tokens[-1], tokens.count("[SEP]")) == ("[CLS]", "[SEP]", len(texts))


def test_of_an_encoder_decoder_and_what_it_writes(seq2seq):
    recording = seq2seq.record(" cab ")
    source, config = [" abcdefg".index(letter) for letter in "cab"], seq2seq.model.config
    target = translate(seq2seq.model, [source])[0][0].ids
    ids = [config.begin, *target][:CONTEXT]
    equal(recording, seq2seq.model, torch.tensor([[*source, config.end]]), torch.tensor([ids]))
    assert recording.tokens == [[*"cab■"]]
    [target_tokens] = recording.target_tokens
    assert target_tokens == ["▶", *seq2seq.tokenizer.pieces(target)][:CONTEXT]
    tokens = {"self": [*"cab■"], "causal": target_tokens}
    for call in recording:
        crosses = call.kind == "cross"
        assert call.query_tokens == tokens["causal" if crosses else call.kind]
        assert call.key_tokens == tokens["self" if crosses else call.kind]
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


def test_tables(gpt, bert, seq2seq):
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
        assert (opened.positions.kind, opened.positions.table is table) == (kind, True)


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


def test_what_goes_wrong_in_a_pass():
    def fails(kind, error, expected, words):
        opened = kind(Failing(error), LETTERS, Path())
        inputs = LoadedGPT(opened.model, LETTERS, Path()).read("ab")
        with pytest.raises(expected, match=words):
            opened.record_inputs(inputs)

    fails(
        LoadedTransformers, KeyError("pixels"), RunError, "cannot run a Failing: KeyError: 'pixels'"
    )
    fails(LoadedTransformers, TextError("an empty text"), TextError, "an empty text")
    fails(LoadedGPT, KeyError("pixels"), KeyError, "pixels")  # not in our own models
    with pytest.warns(UserWarning, match="Failing"):
        fails(LoadedGPT, None, RunError, "no attention in a Failing")
