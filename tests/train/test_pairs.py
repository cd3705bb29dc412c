"""Training on pairs: batches, losses and learning."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heedful.errors import ArgumentError, TextError
from heedful.models import Seq2Seq, Seq2SeqConfig, loss
from heedful.text import Pairs
from heedful.train import PRESETS, Recipe, Translating, Validation, begin, new_plan, open_training
from heedful.train.batches import BatchIndex
from heedful.train.optimizers import rate_factor
from heedful.translate import Search, translate

SIDES = [[3, 1, 6], [2, 6], [0, 1, 2, 6], [4, 4, 6], [1, 6], [3, 3, 3, 3, 6]]  # 6 is the end token
LINES = "".join(f"{n} plus {n % 7}\t{n + n % 7}\n" for n in range(10, 90))


def pairs_of(sides):
    ids = np.array([id for side in sides for id in side], np.uint16)
    return Pairs(ids, np.cumsum([0, *map(len, sides)]))


def task():
    return Translating(pairs_of(SIDES), pairs_of(SIDES[:2]), context_length=8, begin=5)


def recipe(**changes):
    start = PRESETS["dates"]
    model = dataclasses.replace(
        start.model, context_length=16, width=24, layers=1, decoder_layers=2, heads=2, dropout=0.2
    )
    train = dataclasses.replace(
        start.train, steps=24, batch=3, accumulation=2, evaluate_every=6, save_every=4,
        warmup=4, device="cpu",
    )  # fmt: skip
    text = dataclasses.replace(start.text, validation=0.1)
    return Recipe(text, model, dataclasses.replace(train, **changes))


def make_plan(directory, **changes):
    (directory / "pairs.tsv").write_text(LINES)
    return new_plan(directory / "run", [str(directory / "pairs.tsv")], recipe(**changes))


def test_a_model_learns_to_reverse_a_source(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abc" for b in "abcd"))
    plan = new_plan(
        tmp_path / "run",
        [str(tmp_path / "pairs.tsv")],
        recipe(steps=120, batch=12, accumulation=1, learning_rate=1e-2).changed(
            {"text": {"validation": 0.0}, "model": {"dropout": 0.0}}
        ),
    )
    prepared = begin(plan)
    training = open_training(plan, prepared)
    list(training.events())
    ids = [prepared.tokenizer.encode(text) for text in ("ad", "cb", "bb")]
    translations = translate(training.model.eval(), ids, Search(beams=3))
    texts = [prepared.tokenizer.decode(targets[0].ids) for targets in translations]
    assert texts == ["da", "bc", "bb"]


def test_a_batch_is_padded_and_shifted():
    batch = next(task().in_order(pairs_of(SIDES), batch=3))
    assert batch.source.tolist() == [[3, 1, 6, 0], [0, 1, 2, 6], [1, 6, 0, 0]]
    assert batch.source_keep.tolist() == [
        [True] * 3 + [False],
        [True] * 4,
        [True] * 2 + [False] * 2,
    ]
    keep = batch.target_keep
    rows = zip(batch.inputs, batch.targets, keep, strict=True)
    real = [(inputs[k].tolist(), targets[k].tolist()) for inputs, targets, k in rows]
    assert real == [([5, 2], [2, 6]), ([5, 4, 4], [4, 4, 6]), ([5, 3, 3, 3, 3], [3, 3, 3, 3, 6])]
    assert task().target_count(batch) == 10


def test_batches_are_pairs_determined_by_the_key():
    first, repeated, other = (task().draw(50, BatchIndex(key)) for key in ((1, 0), (1, 0), (1, 1)))
    assert all(torch.equal(a, b) for a, b in zip(first, repeated, strict=True))
    assert first.source.tolist() != other.source.tolist()
    assert len({tuple(row) for row in first.source.tolist()}) == 3  # the last pair can be drawn


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_is_the_mean_over_real_targets_with_smoothed_labels(smoothing):
    """Compared with a loop in float64 without padding, and with torch."""
    model = Seq2Seq(Seq2SeqConfig(vocabulary=7, context_length=8, width=8, heads=2)).eval()
    pairs = pairs_of(SIDES)
    total, count = 0.0, 0
    for i in range(len(pairs)):
        source, target = (torch.from_numpy(side.astype(np.int64))[None] for side in pairs[i])
        decoder_input = torch.cat([torch.tensor([[5]]), target[:, :-1]], 1)
        likely = model(source, decoder_input).logits[0].double().log_softmax(-1).detach()
        for row, token in zip(likely, target[0].tolist(), strict=True):
            target_weights = [smoothing / 7 + (1 - smoothing) * (v == token) for v in range(7)]
            total -= sum(w * float(r) for w, r in zip(target_weights, row, strict=True))
            count += 1
    (batch,) = task().in_order(pairs, batch=9)
    ours = task().loss(model, batch, smoothing)
    assert ours.item() == pytest.approx(total / count, rel=1e-5)
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    expected = F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=smoothing)
    torch.testing.assert_close(loss(logits, targets, smoothing), expected)


def test_evaluation_smooths_nothing(tmp_path):
    plan = make_plan(tmp_path, label_smoothing=0.5, steps=0)
    training = open_training(plan, begin(plan))
    (event,) = (event for event in training.events() if isinstance(event, Validation))
    (batch,) = training.task.in_order(training.task.validation, 99)
    training.model.eval()
    assert event.loss == pytest.approx(training.task.loss(training.model, batch, 0.0).item())
    assert event.loss != pytest.approx(training.task.loss(training.model, batch, 0.5).item())


def test_the_papers_learning_rate():
    """Section 5.3: width^-0.5 · min(step^-0.5, step · warmup^-1.5), with steps from 1."""
    settings = dataclasses.replace(
        PRESETS["transformer-base"].train, learning_rate=(512 * 4000) ** -0.5
    )
    for step in (1, 100, 4000, 4001, 50_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        rate = settings.learning_rate * rate_factor(step - 1, settings)
        assert rate == pytest.approx(expected, rel=1e-9)
    assert rate_factor(0, dataclasses.replace(settings, warmup=0)) == 1.0


def test_wrong_pairs_leave_no_run(tmp_path):
    def plan_of(content, **changes):
        path = tmp_path / "pairs.tsv"
        path.write_text(content)
        return new_plan(tmp_path / "run", [str(path)], recipe().changed(changes))

    for content, words, changes in [
        ("a\tb\n" + "a" * 20 + "\tb\n", "line 2 has 21 tokens", {}),
        ("a\tb\n", "no pair to train on", {"text": {"validation": 0.5}}),
    ]:
        with pytest.raises(TextError, match=words):
            begin(plan_of(content, **changes))
        assert not (tmp_path / "run").exists()
    for names in ([tmp_path], [tmp_path / "pairs.tsv"] * 2):
        with pytest.raises(ArgumentError, match="one TSV file"):
            new_plan(tmp_path / "run", [*map(str, names)], recipe())
