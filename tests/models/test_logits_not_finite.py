"""Logits that are not finite: every command and function that chooses tokens refuses them."""

import math

import pytest
import torch

from heedful.errors import RunError
from heedful.fill import fill
from heedful.generate import Sampling, generate
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.text import WordPieceTokenizer
from heedful.translate import Search, translate

SHAPE = {"context_length": 8, "width": 8, "layers": 1, "heads": 2}
VALUES = pytest.mark.parametrize("value", [math.nan, math.inf])


def with_value(model, value):
    """Set the logit of token 3 to a value."""
    model.head.register_forward_hook(lambda *call: call[2].index_fill(-1, torch.tensor(3), value))
    return model.eval()


@VALUES
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_generation(value, temperature):
    model = with_value(GPT(GPTConfig(vocabulary=9, **SHAPE)), value)
    with pytest.raises(RunError, match="not finite"):
        list(generate(model, [1, 2], tokens=3, sampling=Sampling(temperature=temperature)))


def test_a_token_of_probability_0_may_have_a_logit_of_minus_infinity():
    logits = torch.tensor([[0.0, -math.inf, 1.0]])
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature=temperature)
        assert int(sampling.choose(logits, torch.tensor([[0]]))) in (0, 2)


@VALUES
@pytest.mark.parametrize("beams", [1, 3])
def test_translation(value, beams):
    model = with_value(Seq2Seq(Seq2SeqConfig(vocabulary=9, **SHAPE)), value)
    with pytest.raises(RunError, match="not finite"):
        translate(model, [[1, 2]], Search(beams=beams))


@VALUES
def test_masked_words(value):
    tokenizer = WordPieceTokenizer.train(["the capital of france is paris. " * 9], 60)
    model = with_value(Bert(BertConfig(vocabulary=tokenizer.size, **SHAPE)), value)
    with pytest.raises(RunError, match="not finite"):
        fill(model, tokenizer, "the [MASK]")
