"""Masked-word prediction: the words and probabilities equal those of the full model."""

import pytest
import torch

from heedful.errors import ArgumentError, TextError
from heedful.fill import fill, filled
from heedful.models import Bert, BertConfig
from heedful.text import WordPieceTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.train(["the capital of france is paris, of spain madrid. " * 9], 120)


def bert(tokenizer, **parts):
    torch.manual_seed(11)
    shape = {"context_length": 16, "width": 24, "layers": 2, "heads": 3}
    model = Bert(BertConfig(vocabulary=tokenizer.size, **shape, **parts)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def predict_all(model, tokenizer, *texts):
    """Return ids and probabilities (N, V) of each word at each position, from the logits."""
    inputs = tokenizer.inputs(*texts)
    ids, segments = (torch.tensor([numbers]) for numbers in inputs)
    return inputs.ids, model(ids, segments=segments).logits[0].softmax(-1)


@pytest.mark.parametrize(
    "texts",
    [
        ("The capital of France is [MASK].",),
        ("[MASK] capital [MASK] [MASK]",),
        ("The capital of [MASK]", "is [MASK]"),
    ],
    ids=["one", "several", "pair"],
)
def test_words_are_the_likeliest_of_the_full_model(texts, tokenizer):
    model = bert(tokenizer)
    ids, likely = predict_all(model, tokenizer, *texts)
    gaps = fill(model, tokenizer, *texts, count=4)
    mask = tokenizer.special["mask"]
    assert [gap.position for gap in gaps] == [n for n, token in enumerate(ids) if token == mask]
    for gap in gaps:
        expected = likely[gap.position].detach()
        order = expected.argsort(descending=True)[:4].tolist()
        assert [guess.id for guess in gap.guesses] == order
        assert [guess.word for guess in gap.guesses] == tokenizer.pieces(order)
        probabilities = torch.tensor([guess.probability for guess in gap.guesses])
        torch.testing.assert_close(probabilities, expected[order], rtol=1e-4, atol=1e-6)


def test_more_words_than_the_vocabulary_has(tokenizer):
    [gap] = fill(bert(tokenizer), tokenizer, "[MASK]", count=10_000)
    assert len(gap.guesses) == tokenizer.size
    assert sum(guess.probability for guess in gap.guesses) == pytest.approx(1, abs=1e-5)


def test_texts_and_models_that_cannot_be_filled(tokenizer):
    model = bert(tokenizer)
    for call, error, words in (
        (lambda: fill(model, tokenizer, "no gap"), TextError, r"no \[MASK\] in the text"),
        (lambda: fill(model, tokenizer, "paris " * 14 + "[MASK]"), ArgumentError,
         "17 tokens; .*16"),
        (lambda: fill(bert(tokenizer, masked_words=False), tokenizer, "[MASK]"), ArgumentError,
         "BertForMaskedLM"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()


def test_texts_are_filled(tokenizer):
    texts = ["the [MASK] of france", "is [MASK] [MASK]."]
    gaps = fill(bert(tokenizer), tokenizer, *texts, count=2)
    first, *rest = (gap.guesses[0].word.removeprefix("##") for gap in gaps)
    first_line, second_line = ("".join(line.split()) for line in filled(tokenizer, texts, gaps))
    assert first_line.startswith(f"the{first}")
    assert second_line == "is" + "".join(rest) + "."
