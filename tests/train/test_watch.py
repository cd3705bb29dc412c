"""Head scores during training: scores by definition, training unchanged, also when resumed."""

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import ArgumentError, TextError
from heedful.files import load_tensors
from heedful.models import load_model
from heedful.text import load_tokenizer
from heedful.train import (
    PRESETS,
    Step,
    begin,
    new_plan,
    open_training,
    prepare_run,
    read_metrics,
    replace,
)
from heedful.train.events import Watched
from heedful.train.run import events
from heedful.train.run_directory import lock_run
from heedful.train.watch import recordings_of, scores_over_steps

TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(90))
SAMPLE = "green wall, green wall"
SIZES = {"context_length": 16, "width": 24, "layers": 2, "heads": 3}
STEPS = {"steps": 24, "batch": 2, "evaluate_every": 8, "save_every": 5, "device": "cpu"}


def plan_of(folder, name="run", preset="quick", model=None, **changes):
    (folder / "text.txt").write_text(TEXT)
    tokenizer = {"tokenizer": "wordpiece"} if preset == "bert" else {"tokenizer": "characters"}
    recipe = PRESETS[preset].changed(
        {"text": tokenizer, "model": SIZES | (model or {}), "train": STEPS | changes}
    )
    return new_plan(folder / name, [str(folder / "text.txt")], recipe)


def train_run(plan):
    return list(open_training(plan, begin(plan)).events())


def lines(plan):
    return [line for line in read_metrics(plan.directory / "metrics.jsonl") if "watched" in line]


def by_definition(model, ids):
    """Return the scores of all heads, computed in NumPy from the model's intermediate results."""
    scores = {name: [] for name in ("entropy", "previous", "induction", "sink", "largest_logit")}
    N = len(ids)
    for steps in model.steps(torch.tensor([ids])):
        weights, scaled = steps.weights[0].double().numpy(), steps.scaled[0].double().numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.where(weights > 0, np.log(weights), 0)
        # per query: the positions after earlier copies of its token
        copies = [(n, [m for m in range(1, n) if ids[m - 1] == ids[n]]) for n in range(N)]
        repeated = [(n, keys) for n, keys in copies if keys]
        for name, values in {
            "entropy": -(weights * log).sum(-1).mean(-1),
            "previous": np.mean([weights[:, n, n - 1] for n in range(1, N)], axis=0),
            "induction": np.mean([weights[:, n, keys].sum(-1) for n, keys in repeated], axis=0),
            "sink": weights[:, 1:, 0].mean(-1),
            "largest_logit": np.where(np.tri(N) > 0, scaled, -np.inf).max((1, 2)),
        }.items():
            scores[name].append(values.tolist())
    return scores


def test_scores_are_their_definitions_and_those_of_the_recording(tmp_path):
    plan = plan_of(tmp_path, model={"dropout": 0.4}, watch=SAMPLE)
    watched = [event for event in train_run(plan) if isinstance(event, Watched)]
    steps, scores = scores_over_steps(read_metrics(plan.directory / "metrics.jsonl"))
    assert steps == [event.step for event in watched] == list(recordings_of(plan.directory))
    assert watched[-1].scores == {name: each[-1] for name, each in scores.items()}
    model = load_model(plan.directory, checkpoint="last").eval()
    ids = load_tokenizer(plan.directory).encode(SAMPLE)[:16]
    with torch.no_grad():
        expected = by_definition(model, ids)
    for name, value in expected.items():
        np.testing.assert_allclose(scores[name][-1], value, rtol=1e-3, err_msg=name)
    heads = heedful.load(recordings_of(plan.directory)[24]).heads()
    for name in ("entropy", "previous", "induction", "sink"):
        expected = [getattr(head, name) for head in heads]
        np.testing.assert_allclose(np.ravel(scores[name][-1]), expected, rtol=1e-3, err_msg=name)


def test_training_is_bit_for_bit_as_without_and_continues_as_if_never_stopped(tmp_path):
    changes = {"model": {"dropout": 0.2}, "watch_every": 3}
    plans = {
        name: plan_of(tmp_path, name, watch=watch, **(changes | more))
        for name, watch, more in (
            ("alone", None, {"watch_every": 0}),
            ("whole", SAMPLE, {}),
            ("cut", SAMPLE, {}),
        )
    }
    train_run(plans["alone"])
    train_run(plans["whole"])
    running = open_training(plans["cut"], begin(plans["cut"]))
    for event in running.events():  # stopped at step 17, after the recording of step 15
        if getattr(event, "step", 0) == 17:
            break
    assert max(recordings_of(plans["cut"].directory)) == 15
    other = plans["cut"]._replace(directory=tmp_path / "other")
    resumed = open_training(plans["cut"], begin(other))
    resumed.directory = plans["cut"].directory
    assert resumed.restore()
    assert resumed.progress.step == 15
    list(resumed.events())
    states = {
        name: load_tensors(plan.directory / "state/last.safetensors")
        for name, plan in plans.items()
    }
    uninterrupted, about = states["whole"]
    for name in ("alone", "cut"):
        assert all(torch.equal(states[name][0][key], uninterrupted[key]) for key in uninterrupted)
    assert states["cut"][1] == about
    metrics = [plan.directory / "metrics.jsonl" for plan in (plans["cut"], plans["whole"])]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    resumed, complete = (recordings_of(plans[name].directory) for name in ("cut", "whole"))
    assert list(resumed) == list(complete) == [0, 3, 6, 9, 12, 15, 18, 21, 24]
    for step, path in resumed.items():
        assert path.read_bytes() == complete[step].read_bytes(), step


def test_stopped_at_a_watched_validation_and_killed_after_resuming(tmp_path):
    """Metrics equal those of an uninterrupted run."""
    changes = {"steps": 10, "evaluate_every": 4, "save_every": 10, "watch_every": 4}
    complete, cut = (plan_of(tmp_path, n, watch=SAMPLE, **changes) for n in ("whole", "cut"))
    train_run(complete)
    running = open_training(cut, begin(cut))
    for event in running.events():
        if getattr(event, "step", 0) == 4:
            running.stop()
    for kill in (True, False):
        resumed = open_training(cut, prepare_run(cut))
        assert resumed.restore()
        for event in resumed.events():
            if kill and isinstance(event, Step):
                break
    expected, result = (plan.directory / "metrics.jsonl" for plan in (complete, cut))
    assert expected.read_bytes() == result.read_bytes()


def test_a_replacement_brings_its_own_recordings_or_none(tmp_path):
    plan = plan_of(tmp_path, watch=SAMPLE)
    train_run(plan)
    for watch, steps in ((SAMPLE, [0, 1, 2, 3]), (None, [])):
        new = plan_of(tmp_path, watch=watch, steps=3, watch_every=1)
        with lock_run(new.directory):
            list(events(new, open_training(new, replace(new))))
        assert list(recordings_of(new.directory)) == steps
        assert (new.directory / "watched").exists() == bool(steps)
        assert [line["step"] for line in lines(new)] == steps


def test_a_bert_is_watched_with_its_special_tokens(tmp_path):
    plan = plan_of(tmp_path, preset="bert", model={"pooler": False}, watch=SAMPLE, steps=2)
    train_run(plan)
    recording = heedful.load(recordings_of(plan.directory)[2])
    assert recording[0].tokens[0] == "[CLS]"
    assert recording[0].kind == "self"
    assert np.shape(lines(plan)[-1]["watched"]["induction"]) == (2, 3)


def test_texts_that_cannot_be_watched_are_refused(tmp_path):
    for text, error, words in (
        ("g", ArgumentError, "a watched text of fewer than two tokens; expected at least two"),
        ("green €", TextError, "the character '€'"),
    ):
        plan = plan_of(tmp_path, watch=text)
        with pytest.raises(error, match=words):
            begin(plan)
        assert not plan.directory.exists()  # so that the same directory can be used again
