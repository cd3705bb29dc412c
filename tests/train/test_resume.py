"""A killed and resumed run equals an uninterrupted run, bit for bit."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import outcome, train_run, write_plan

from heedful.models import load_model
from heedful.train import (
    PRESETS,
    Ended,
    Step,
    begin,
    new_plan,
    open_training,
    prepare_run,
    read_metrics,
    read_plan,
)

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
def uninterrupted(tmp_path_factory):
    """The outcome of a run that was never stopped, with each recipe."""
    outcomes = {}
    for name, changes in RECIPES.items():
        directory = tmp_path_factory.mktemp(name)
        train_run(write_plan(directory, **changes))
        outcomes[name] = outcome(directory / "run")
    return outcomes


# A program for a separate process, which kills itself at the n-th call of a function
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from heedful.files import atomic as files
from heedful.train import loop, open_training, prepare_run, read_plan

phase, nth_call = sys.argv[2], int(sys.argv[3])
torch.set_num_threads(torch.get_num_threads())

def kill_at_nth_call(function, count=[0]):
    def wrapped(*arguments, **named):
        count[0] += 1
        if count[0] == nth_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return wrapped

plan = read_plan(Path(sys.argv[1]))
if phase == "tokenizing":
    files.os.replace = kill_at_nth_call(os.replace)
prepared = prepare_run(plan)
training = open_training(plan, prepared)
if phase == "replacing":
    files.os.replace = kill_at_nth_call(os.replace)
if phase == "flushing":
    files.os.fsync = kill_at_nth_call(os.fsync)
if phase == "stepping":
    training.optimizer.step = kill_at_nth_call(training.optimizer.step)
for event in training.events():
    pass
raise SystemExit("it was not killed")
"""


@pytest.mark.parametrize(
    ("phase", "nth_call", "name"),
    [
        ("tokenizing", 1, "adamw"),  # before the tokens are written
        ("stepping", 3, "adamw"),  # before the first checkpoint
        ("stepping", 15, "muon"),
        ("flushing", 8, "adamw"),  # a checkpoint is written, but not yet renamed
        ("replacing", 5, "adamw"),
        ("replacing", 7, "adamw"),  # between the best weights and the checkpoint
    ],
)
def test_killed_and_continued_equals_never_stopped(phase, nth_call, name, tmp_path, uninterrupted):
    plan = write_plan(tmp_path, **RECIPES[name])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, plan.directory, phase, str(nth_call)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    train_run(read_plan(plan.directory), resume=True)
    assert outcome(plan.directory) == uninterrupted[name]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stop_at", [1, 6, 8, 23])
def test_stopped_and_continued_equals_never_stopped(stop_at, name, tmp_path, uninterrupted):
    plan = write_plan(tmp_path, **RECIPES[name])
    training = open_training(plan, prepare_run(plan))
    for event in training.events():
        if isinstance(event, Step) and event.step == stop_at:
            training.stop()
    assert event == Ended(stop_at, "stopped")
    train_run(read_plan(plan.directory), resume=True)
    assert outcome(plan.directory) == uninterrupted[name]


def bert_plan(directory):
    (directory / "text.txt").write_text(" ".join(["one", "two", "three", "four", "five"] * 150))
    model = {"context_length": 12, "width": 24, "layers": 2, "heads": 2}
    train = {"batch": 4, "warmup": 2}
    changes = {"text": {"vocabulary": 256}, "model": model, "train": train | SHORT}
    recipe = PRESETS["bert"].changed(changes)
    return new_plan(directory / "run", [str(directory / "text.txt")], recipe)


def pairs_plan(directory):
    lines = (f"{n} plus {n % 7}\t{n + n % 7}\n" for n in range(10, 90))
    (directory / "pairs.tsv").write_text("".join(lines))
    model = {"context_length": 16, "width": 24, "layers": 1, "heads": 2, "dropout": 0.2}
    train = {"batch": 3, "accumulation": 2, "warmup": 4}
    recipe = PRESETS["dates"].changed({"model": model, "train": train | SHORT})
    return new_plan(directory / "run", [str(directory / "pairs.tsv")], recipe)


SHORT = {"steps": 12, "evaluate_every": 4, "save_every": 3, "device": "cpu"}


@pytest.mark.parametrize("make_plan", [bert_plan, pairs_plan])
def test_models_of_other_kinds_continue_as_if_never_stopped(make_plan, tmp_path):
    """Resuming works without the text."""
    outcomes = []
    for stop_at in (None, 5):
        directory = tmp_path / str(stop_at)
        directory.mkdir()
        plan = make_plan(directory)
        training = open_training(plan, begin(plan))
        for event in training.events():
            if isinstance(event, Step) and event.step == stop_at:
                training.stop()
        assert event == Ended(stop_at or 12, "stopped" if stop_at else "finished")
        Path(plan.sources[0]).unlink()
        if stop_at:
            train_run(read_plan(plan.directory), resume=True)
        outcomes.append(outcome(plan.directory))
    assert outcomes[0] == outcomes[1]


def test_best_and_last_have_the_weights_of_their_steps(tmp_path):
    plan = write_plan(
        tmp_path, learning_rate=0.05, decay="constant"
    )  # so the validation loss rises at the end
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
