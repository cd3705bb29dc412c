"""A run that was killed and continued has, bit for bit, the losses of one that never stopped."""

import dataclasses
import signal
import subprocess
import sys

import pytest

from heedful.files import load_tensors, read_json, write_json
from heedful.models import load_model
from heedful.train import (
    PRESETS,
    Ended,
    Recipe,
    Step,
    new_plan,
    open_training,
    prepare_run,
    read_metrics,
    read_plan,
)

TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(120))


def recipe(**changes):
    quick = PRESETS["quick"]
    model = dataclasses.replace(
        quick.model,
        context_length=16,
        width=24,
        layers=2,
        heads=2,
        dropout=0.2,
        embedding_dropout=0.1,
    )
    train = dataclasses.replace(
        quick.train, steps=24, batch=3, accumulation=2, evaluate_every=6, save_every=4, device="cpu"
    )
    text = dataclasses.replace(quick.text, tokenizer="characters")
    return Recipe(text, model, dataclasses.replace(train, **changes))


def started(directory, **changes):
    (directory / "text.txt").write_text(TEXT)
    plan = new_plan(directory / "run", [str(directory / "text.txt")], recipe(**changes))
    plan.write()
    return plan


def trained(plan, resume=False):
    training = open_training(plan, prepare_run(plan))
    if resume:
        training.restore()
    return list(training.events())


def outcome(directory):
    tensors, about = load_tensors(directory / "state/last.safetensors")
    best, _ = load_tensors(directory / "model.safetensors")
    numbers = {name: tensor.tolist() for name, tensor in {**tensors, **best}.items()}
    return read_metrics(directory / "metrics.jsonl"), about, numbers


RECIPES = {
    "muon": {},
    "adamw": {"optimizer": "adamw", "initial": "normal", "decay": "cosine", "final_rate": 0.1},
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
    files._flush = deadly(files._flush)
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


def test_a_run_from_before_muon_goes_on_with_adamw(tmp_path):
    plan = started(tmp_path, **RECIPES["adamw"])
    path = plan.directory / "state/recipe.json"
    about = read_json(path)
    for name in ("optimizer", "initial", "matrix_rate", "matrix_decay", "momentum", "fall"):
        del about["train"][name]
    write_json(path, about)
    assert read_plan(plan.directory).recipe == plan.recipe
