"""The parts of the recipe, each beside its definition."""

import dataclasses

import numpy as np
import pytest
import torch
from small_runs import recipe, started, trained

from heedful.errors import ArgumentError
from heedful.models import load_model
from heedful.train import PRESETS, NextToken, Training, TrainSettings, Validation, new_plan
from heedful.train.growth import size_of
from heedful.train.optimizers import make_optimizer, set_rates

IDS = np.random.default_rng(0).integers(0, 19, 400)


def training(directory, **settings):
    from heedful.models import GPT, GPTConfig

    torch.manual_seed(4)
    config = GPTConfig(
        vocabulary=19,
        context_length=8,
        width=12,
        heads=2,
        layers=1,
        convolution=2,
        residual_scalars=True,
    )
    given = {"steps": 6, "batch": 4, "warmup": 0, "decay": "constant", "device": "cpu", **settings}
    task = NextToken(IDS[:300], IDS[300:], 8)
    return Training(directory, GPT(config), task, TrainSettings(**given))


def test_the_mean_of_the_weights_is_validated_and_saved(tmp_path):
    """By its recursion in NumPy, over the weights that each step leaves."""
    run = training(tmp_path, mean_weights=0.8, evaluate_every=6, save_every=6)
    seen, names = [], dict(run.model.named_parameters())
    update = run.mean.update

    def noted(step):
        seen.append({name: one.detach().numpy().copy() for name, one in names.items()})
        update(step)

    run.mean.update = noted
    list(run.events())
    mean = {}
    for step, weights in enumerate(seen, 1):
        decay = min(0.8, step / (step + 9))
        for name, one in weights.items():
            mean[name] = decay * mean.get(name, one) + (1 - decay) * one
    with run.mean.in_use():
        for name, one in names.items():
            np.testing.assert_allclose(one.detach(), mean[name], atol=1e-6)
        within = run.evaluate(run.task.validation)
    for name, one in names.items():
        assert np.array_equal(one.detach(), seen[-1][name])
    assert run.progress.best == within
    run.mean.decay = 0.0
    for one in run.optimizer.state.values():
        del one["average"]
    assert run.evaluate(run.task.validation) != within


def test_a_run_saves_the_mean_as_its_model(tmp_path):
    plan = started(tmp_path, mean_weights=0.8, steps=6)
    trained(plan)
    best, last = (load_model(plan.directory, checkpoint=which) for which in ("best", "last"))
    assert not torch.equal(best.tokens.weight, last.tokens.weight)


def test_a_run_that_goes_on_without_a_mean_validates_its_weights(tmp_path):
    """Else it would validate, for ever, the mean of the steps before."""
    list(training(tmp_path, mean_weights=0.8).events())
    later = training(tmp_path, steps=9, evaluate_every=3)
    later.restore()
    losses = [event.loss for event in later.events() if isinstance(event, Validation)]
    later.mean.optimizer = torch.optim.SGD(later.parameters)  # whose state is empty
    assert losses == [later.evaluate(later.task.validation)]


def test_batches_and_contexts_grow(tmp_path):
    run = training(tmp_path, steps=8, first_batch=1, first_context=2)
    shapes = []
    loss = run._training_loss
    run._training_loss = lambda model, batch, smoothing: (
        shapes.append(tuple(batch.inputs.shape)) or loss(model, batch, smoothing)
    )
    steps = [run._step(_Unwritten()) for _ in range(8)]
    assert shapes == [(1, 2), (2, 4), (2, 5), (3, 6), (4, 8), (4, 8), (4, 8), (4, 8)]
    assert [step.tokens for step in steps] == [a * b for a, b in shapes]
    assert size_of(3, TrainSettings(batch=5), 7) == (5, 7)


class _Unwritten:
    lowest = latest = mean = 9.0

    def write_step(self, step, loss, rate):
        return loss


def test_each_group_has_its_rate_its_decay_and_its_half_life(tmp_path):
    settings = TrainSettings(
        optimizer="muon", steps=10, warmup=0, decay="linear", final_rate=0.0, falling_decay=True,
        learning_rate=0.5, matrix_rate=0.25, convolution_rate=2.0, weight_decay=0.3,
        matrix_decay=0.7, half_life=1000,
    )  # fmt: skip
    optimizer = make_optimizer(training(tmp_path).model, settings)
    set_rates(optimizer, 5, settings, tokens=2000)
    matrices, tables, vectors, convolved = groups = optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.125, 0.25, 0.25, 1.0]
    assert [group["weight_decay"] for group in groups] == pytest.approx([0.35, 0.15, 0.0, 0.0])
    assert [group["betas"] for group in (tables, vectors, convolved)] == [(0.9, 0.25)] * 3
    assert {one.ndim for one in matrices["params"]} == {one.ndim for one in tables["params"]} == {2}
    assert {tuple(one.shape) for one in vectors["params"]} == {(12,), (6,)}
    assert [tuple(one.shape) for one in convolved["params"]] == [(12,), (12,), (1,), (1,)]
    with pytest.raises(ArgumentError, match="half_life"):  # a β₂ of 1, which makes NaN
        TrainSettings(half_life=10**18)
    set_rates(optimizer, 5, dataclasses.replace(settings, half_life=0), tokens=2000)
    assert tables["betas"] == (0.9, 0.95)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first_batch": 4}, "first_batch = 4; expected at most the 3 that it grows to"),
        ({"first_context": 17}, "first_context = 17; expected at most the 16 that it grows to"),
    ],
)
def test_what_would_shrink_is_refused(changes, words, tmp_path):
    with pytest.raises(ArgumentError, match=words):
        new_plan(tmp_path / "run", [], recipe(**changes))


@pytest.mark.parametrize(("name", "kind"), [("bert", "BERT"), ("dates", "encoder–decoder")])
def test_the_context_of_a_gpt_alone_grows(name, kind, tmp_path):
    start = PRESETS[name]
    growing = start._replace(train=dataclasses.replace(start.train, first_context=8))
    words = f"^first_context for a model of the kind {kind}; expected it for a GPT alone"
    with pytest.raises(ArgumentError, match=words):
        new_plan(tmp_path / "run", [], growing)
