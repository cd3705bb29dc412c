"""Masked words: the shares of masked tokens, the loss against the model's logits, and learning."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, TextError
from heedful.fill import fill
from heedful.models import Bert, BertConfig, load_model
from heedful.text import load_tokenizer
from heedful.train import PRESETS, MaskedWords, begin, new_plan, open_training
from heedful.train.batches import BatchIndex

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCABULARY = 60
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
TEXT = " ".join(NUMBERS * 90)


def task(tokens=700, context_length=22):
    ids = np.random.default_rng(5).integers(5, VOCABULARY, tokens).astype(np.uint16)
    return MaskedWords(ids[:-60], ids[-60:], context_length, SPECIAL, VOCABULARY)


def recipe(**train):
    start = PRESETS["bert"]
    return start.changed(
        {
            "text": {"vocabulary": 256},
            "model": {"context_length": 12, "width": 32, "layers": 2, "heads": 2, "dropout": 0.0,
                      "attention_dropout": 0.0},
            "train": {"steps": 12, "batch": 4, "warmup": 2, "evaluate_every": 4, "save_every": 3,
                      "device": "cpu", **train},
        }
    )  # fmt: skip


def make_plan(folder, **train):
    (folder / "text.txt").write_text(TEXT)
    return new_plan(folder / "run", [str(folder / "text.txt")], recipe(**train))


def restored(batch):
    """Return the ids of a batch with the masked words restored."""
    ids = batch.ids.clone()
    ids[batch.is_target] = batch.targets
    return ids


@given(st.integers(1, 5), st.integers(3, 30), st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_batch_has_pieces_of_the_text_with_special_tokens_and_masks(batch, context_length, seed):
    drawn_batch = task(context_length=context_length).draw(batch, BatchIndex((seed, 0)))
    length = drawn_batch.ids.shape[1] - 2
    assert drawn_batch.ids.shape == drawn_batch.is_target.shape == (batch, length + 2)
    assert drawn_batch.is_target.sum(1).tolist() == [max(1, round(0.15 * length))] * batch
    assert (drawn_batch.ids[:, 0] == 2).all()
    assert (drawn_batch.ids[:, -1] == 3).all()
    assert not drawn_batch.is_target[:, [0, -1]].any()
    text = task(context_length=context_length).train.tolist()
    runs = {tuple(text[i : i + length]) for i in range(len(text))}
    assert all(tuple(row) in runs for row in restored(drawn_batch)[:, 1:-1].tolist())


def test_targets_are_mostly_masked_some_replaced_and_some_unchanged():
    filling = task(context_length=202, tokens=80_060)
    [drawn_batch] = filling.in_order(filling.train, 400)
    ids = drawn_batch.ids[drawn_batch.is_target]
    masked, same = ids == 4, ids == drawn_batch.targets
    swapped = ids[~masked & ~same]
    assert len(ids) == 400 * 30
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.02)
    assert len(swapped) / len(ids) == pytest.approx(0.1 * 54 / 55, abs=0.01)
    assert float(same.float().mean()) == pytest.approx(0.1 + 0.1 / 55, abs=0.01)
    assert set(swapped.tolist()) == set(range(5, VOCABULARY))  # every word, and nothing else
    assert torch.bincount(drawn_batch.is_target.nonzero()[:, 1], minlength=202)[1:-1].min() > 25


def test_half_of_the_batches_are_shorter():
    filling = task()
    lengths = [filling.draw(1, BatchIndex((9, step))).ids.shape[1] - 2 for step in range(2000)]
    short = [length for length in lengths if length < 20]
    assert len(short) / 2000 == pytest.approx(0.5 * 19 / 20, abs=0.03)
    assert set(short) == set(range(1, 20))
    assert max(lengths) == 20


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_a_split_is_read_completely_with_the_same_masks_each_time(batch):
    filling = task()
    read = list(filling.in_order(filling.validation, batch))
    texts = torch.cat([restored(part)[:, 1:-1].flatten() for part in read])
    assert texts.tolist() == filling.validation.tolist()  # 60 = 3 · 20
    for a, b in zip(read, filling.in_order(filling.validation, batch), strict=True):
        assert all(map(torch.equal, a, b))
    short = list(filling.in_order(filling.validation[:47], batch))
    assert short[-1].ids.shape == (1, 7 + 2)
    assert sum(map(filling.target_count, short)) == 3 + 3 + 1
    alone = list(filling.in_order(filling.validation[:47], 1))  # the same masks in other batches
    for field in ("ids", "is_target"):
        rows = [row.tolist() for part in short for row in getattr(part, field)]
        assert rows == [getattr(part, field)[0].tolist() for part in alone]


def test_the_loss_is_that_of_the_models_logits_at_the_masks():
    filling = task()
    config = BertConfig(vocabulary=VOCABULARY, context_length=22, width=12, layers=2, heads=3)
    model = Bert(config).eval()
    batch = filling.draw(5, BatchIndex((3, 1)))
    labels = torch.full_like(batch.ids, -100).masked_scatter(batch.is_target, batch.targets)
    logits = model(batch.ids).logits
    for smoothing in (0.0, 0.2):
        expected = F.cross_entropy(logits.transpose(1, 2), labels, label_smoothing=smoothing)
        torch.testing.assert_close(filling.loss(model, batch, smoothing), expected)
    assert filling.target_count(batch) == int((labels != -100).sum())


def test_a_bert_learns_to_predict_masked_words(tmp_path):
    """The words before and after a mask determine it."""
    plan = make_plan(
        tmp_path, steps=500, batch=16, learning_rate=4e-3, warmup=60, evaluate_every=500
    )
    list(open_training(plan, begin(plan)).events())
    model, tokenizer = load_model(plan.directory), load_tokenizer(plan.directory)
    for text, word in (
        ("two three four five [MASK] seven", "six"),
        ("[MASK] three four five six seven", "two"),
        ("eight nine ten one two [MASK]", "three"),
    ):
        [gap] = fill(model, tokenizer, text)
        assert gap.guesses[0].word == word
    assert model.config.padding == tokenizer.special["pad"]


def test_untrainable_texts_raise_one_clear_line(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "short.txt").write_text("a cat, a cow")

    def plan(name="text.txt", **changes):
        return new_plan(tmp_path / "run", [str(tmp_path / name)], recipe().changed(changes))

    for call, error, words in (
        (lambda: begin(plan(model={"context_length": 2})), ArgumentError, "a context of 2"),
        (lambda: begin(plan("short.txt")), TextError, "tokens to train on"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert not (tmp_path / "run").exists()
