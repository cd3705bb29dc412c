"""A run that was killed and continued has, bit for bit, the losses of one that never stopped."""

import dataclasses
import signal
import subprocess
import sys

import pytest
from small_runs import started, trained

from heedful.errors import RunError
from heedful.files import load_tensors, read_checked_json, save_tensors, write_json
from heedful.models import load_model
from heedful.train import (
    Ended,
    Step,
    TrainSettings,
    open_training,
    prepare_run,
    read_metrics,
    read_plan,
)
from heedful.train.events import Noticed


def outcome(directory):
    tensors, about = load_tensors(directory / "state/last.safetensors")
    best, _ = load_tensors(directory / "model.safetensors")
    numbers = {name: tensor.tolist() for name, tensor in {**tensors, **best}.items()}
    return read_metrics(directory / "metrics.jsonl"), about, numbers


RECIPES = {
    "muon": {},
    "adamw": {
        "matrix_decay": 0.0,
        "optimizer": "adamw",
        "initial": "normal",
        "decay": "cosine",
        "final_rate": 0.1,
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcome of a run that was never stopped, with each recipe."""
    outcomes = {}
    for name, changes in RECIPES.items():
        directory = tmp_path_factory.mktemp(name)
        trained(started(directory, **changes))
        outcomes[name] = outcome(directory / "run")
    return outcomes


# Run in a process of its own, which kills itself at the n-th moment of a kind
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from heedful.files import whole as files
from heedful.train import loop, open_training, prepare_run, read_plan

where, after = sys.argv[2], int(sys.argv[3])
torch.set_num_threads(torch.get_num_threads())

def deadly(function, count=[0]):
    def wrapped(*arguments, **named):
        count[0] += 1
        if count[0] == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return wrapped

plan = read_plan(Path(sys.argv[1]))
if where == "tokenizing":
    files.os.replace = deadly(os.replace)
prepared = prepare_run(plan)
training = open_training(plan, prepared)
if where == "replacing":
    files.os.replace = deadly(os.replace)
if where == "flushing":
    files.os.fsync = deadly(os.fsync)
if where == "stepping":
    training.optimizer.step = deadly(training.optimizer.step)
for event in training.events():
    pass
raise SystemExit("it was not killed")
"""


@pytest.mark.parametrize(
    ("where", "after", "name"),
    [
        ("tokenizing", 1, "adamw"),  # the text is not yet there
        ("stepping", 3, "adamw"),  # before anything was saved
        ("stepping", 15, "muon"),
        ("flushing", 8, "adamw"),  # half a save: written, not yet renamed
        ("replacing", 5, "adamw"),
        ("replacing", 7, "adamw"),  # between the best weights and the checkpoint
    ],
)
def test_killed_and_continued_equals_never_stopped(where, after, name, tmp_path, whole):
    plan = started(tmp_path, **RECIPES[name])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, plan.directory, where, str(after)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    trained(read_plan(plan.directory), resume=True)
    assert outcome(plan.directory) == whole[name]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("asked_at", [1, 6, 8, 23])
def test_stopped_and_continued_equals_never_stopped(asked_at, name, tmp_path, whole):
    plan = started(tmp_path, **RECIPES[name])
    training = open_training(plan, prepare_run(plan))
    for event in training.events():
        if isinstance(event, Step) and event.step == asked_at:
            training.stop()
    assert event == Ended(asked_at, "stopped")
    trained(read_plan(plan.directory), resume=True)
    assert outcome(plan.directory) == whole[name]


CHOICES = {field.name: field.metadata["choices"] for field in dataclasses.fields(TrainSettings)}


@pytest.mark.parametrize("decay", CHOICES["decay"])
@pytest.mark.parametrize("optimizer", CHOICES["optimizer"])
def test_stopped_in_the_fall_of_every_schedule_it_goes_on_as_if_never_stopped(
    optimizer, decay, tmp_path
):
    """Stopped at step 7 of 10, where the rate of a trapezoid falls since step 4."""
    changes = {"optimizer": optimizer, "decay": decay, "warmup": 2, "fall": 0.6, "steps": 10}
    changes["matrix_rate"] = 0.005  # so that no step of so few tokens is worse than chance
    outcomes = []
    for stops in ((), (7,)):
        directory = tmp_path / str(stops)
        directory.mkdir()
        plan = started(directory, **changes, accumulation=1)
        training = open_training(plan, prepare_run(plan))
        for event in training.events():
            if isinstance(event, Step) and event.step in stops:
                training.stop()
        if stops:
            assert event == Ended(7, "stopped")
            trained(read_plan(plan.directory), resume=True)
        outcomes.append(outcome(plan.directory))
    assert outcomes[0] == outcomes[1]
    rates = [line["rate"] for line in outcomes[0][0] if "rate" in line]
    assert len(rates) == 10
    assert (rates[6] > rates[9]) == (decay != "constant")


def test_a_run_can_be_made_longer(tmp_path):
    plan = started(tmp_path, decay="constant")
    trained(plan)
    longer = plan._replace(recipe=plan.recipe.changed({"train": {"steps": 30}}))
    events = trained(longer, resume=True)
    assert [event.step for event in events if isinstance(event, Step)] == list(range(25, 31))
    steps = [
        line["step"] for line in read_metrics(plan.directory / "metrics.jsonl") if "loss" in line
    ]
    assert steps == list(range(1, 31))


def test_best_and_last_are_the_weights_that_they_say(tmp_path):
    plan = started(tmp_path, learning_rate=0.05, decay="constant")  # it gets worse again
    prepared = prepare_run(plan)
    training = open_training(plan, prepared)
    list(training.events())
    checks = [
        (line["validation_loss"], line["step"])
        for line in read_metrics(plan.directory / "metrics.jsonl")
        if "validation_loss" in line
    ]
    for checkpoint, expected in (("best", min(checks)[0]), ("last", checks[-1][0])):
        model = load_model(plan.directory, checkpoint=checkpoint)
        training.model.load_state_dict(model.state_dict())
        assert training.evaluate(prepared.tokens.validation) == expected
    assert min(checks)[1] == training.progress.best_step


def test_files_of_another_version_are_refused_in_a_line(tmp_path):
    plan = started(tmp_path, steps=4)
    trained(plan)
    path = plan.directory / "state/recipe.json"
    about = read_checked_json(path)
    for change in ({"momentum": None}, {"momentum": 0.9, "clip_logits": 0.0}):
        settings = {**about["train"], **change}
        settings = {name: value for name, value in settings.items() if value is not None}
        write_json(path, {**about, "train": settings})
        with pytest.raises(RunError, match=r"another version of heedful.* --overwrite"):
            read_plan(plan.directory)
    write_json(path, about)
    path = plan.directory / "state/last.safetensors"
    tensors, progress = load_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    del progress["read"]
    save_tensors(path, tensors, progress)
    with pytest.raises(RunError, match=r"how far the run is.* another version of heedful"):
        trained(plan, resume=True)


def test_a_validation_that_is_cut_off_the_metrics_is_told_as_lost(tmp_path):
    plan = started(tmp_path)
    trained(plan)
    path = plan.directory / "metrics.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    assert "validation_loss" in last
    path.write_text("".join(lines))
    longer = plan._replace(recipe=plan.recipe.changed({"train": {"steps": 25}}))
    training = open_training(longer, prepare_run(longer))
    training.restore()
    said = [event.words for event in training.events() if isinstance(event, Noticed)]
    assert len(said) == 1
    assert "lost" in said[0]
