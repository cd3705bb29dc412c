"""Services that draw a run get each of its numbers once, and can do training no harm.

Their packages are played by modules that write down how they are called.
"""

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

from heedful.errors import ArgumentError
from heedful.train import (
    PRESETS,
    Ended,
    Step,
    has_plan,
    new_plan,
    open_training,
    read_metrics,
)
from heedful.train import run as runs
from heedful.train.events import Noticed
from heedful.train.logs import Logs, check_services
from heedful.train.metrics import Metrics, Progress

TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(120))
CALLS = """
import json, os
def call(name, /, **given):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([name, given], default=str) + "\\n")
def steps():
    with open(os.environ["CALLS"]) as file:
        return [given["step"] for name, given in map(json.loads, file) if name == "log"]
"""
WANDB = """
from calls import call, steps
class Error(Exception): pass
class Settings:
    def __init__(self, *, console, silent): pass
torn = False
def teardown():
    global torn
    torn = True
def init(*, project, name, id, resume, dir, config, settings, mode=None):
    if mode is None:
        raise Error("No API key configured. Use `wandb login` to log in")
    assert torn, "run ID is in use"
    call("init", project=project, name=name, id=id, resume=resume, mode=mode, config=config)
    return Run(dir)
class Run:
    url = None
    def __init__(self, dir):
        self.dir = str(dir / "wandb" / "offline-run" / "files")
        self.step = max(steps(), default=-1) + 1
    def log(self, data, step=None): call("log", step=step, numbers=data)
    def finish(self): call("finish")
"""
TRACKIO = """
from calls import call, steps
def init(project, *, name, config, resume, embed):
    call("init", project=project, name=name, resume=resume, config=config)
    print("* Trackio project initialized")
    return Run()
class Run:
    def __init__(self): self._next_step = max(steps(), default=-1) + 1
    def log(self, metrics, step=None): call("log", step=step, numbers=metrics)
    def finish(self): call("finish")
"""
FAKES = {"calls.py": CALLS, "wandb.py": WANDB, "trackio.py": TRACKIO}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The services' packages are ours; a function gives what was asked of them, once."""
    folder = tmp_path / "packages"
    for name, source in FAKES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    kept = tmp_path / "calls.jsonl"
    kept.touch()
    monkeypatch.setenv("CALLS", str(kept))
    monkeypatch.syspath_prepend(folder)
    names = ("wandb", "trackio", "calls")
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        monkeypatch.delitem(sys.modules, name)
    told = 0

    def new():
        nonlocal told
        found = [json.loads(line) for line in kept.read_text().splitlines()][told:]
        told += len(found)
        return found

    yield new
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


def planned(directory, **changes):
    (directory / "text.txt").write_text(TEXT)
    quick = PRESETS["quick"]
    model = dataclasses.replace(quick.model, context_length=16, width=8, layers=1, heads=2)
    train = dataclasses.replace(
        quick.train, steps=8, batch=2, evaluate_every=4, save_every=4, device="cpu", **changes
    )
    text = dataclasses.replace(quick.text, tokenizer="characters")
    recipe = quick._replace(text=text, model=model, train=train)
    return new_plan(directory / "a run", [str(directory / "text.txt")], recipe)


def write(path, last, done=0):
    """Lines of steps up to `last`, after `done` are saved; a validation after each third."""
    metrics = Metrics(path, Progress(done, evaluated=done // 3 * 3 if done else -1))
    if not done:
        metrics.write(step=0, validation_loss=4.5)
    for step in range(done + 1, last + 1):
        metrics.write_step(step, 4 / step, 0.25)
        if step % 3 == 0:
            metrics.write(step=step, validation_loss=4.5 - step)
    metrics.close()


def drawn(plan, service):
    """What a service reports when it draws the lines that are there."""
    recipe = plan.recipe.changed({"train": {"log": service}})
    logs = Logs(plan.directory, recipe)
    logs.begin()
    logs.end()
    return list(logs.notices())


class Writer:
    """What is used of torch's SummaryWriter."""

    def __init__(self, folder, purge_step):
        self.call = __import__("calls").call
        self.call("init", purge_step=purge_step)

    def add_text(self, tag, text, step):
        pass

    def add_scalar(self, tag, number, step):
        self.call("log", step=step, tag=tag)

    def close(self):
        self.call("finish")


def test_tensorboard_gets_all_again_in_place_of_what_it_had(tmp_path, calls, monkeypatch):
    module = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    plan = planned(tmp_path)
    plan.write()
    for last, done, purged in ((7, 0, None), (9, 5, 0)):
        write(plan.directory / "metrics.jsonl", last, done)
        assert "in " + str(plan.directory / "logs" / "tensorboard") in drawn(plan, "tensorboard")[0]
        (plan.directory / "logs" / "tensorboard").mkdir(exist_ok=True)
        (_, begun), *logged, (end, _) = calls()
        assert begun == {"purge_step": purged}
        losses = [given["step"] for _, given in logged if given["tag"] == "train/loss"]
        assert losses == [*range(1, last + 1)]
        assert end == "finish"


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_a_run_that_goes_on_is_the_same_curve_without_gaps_or_doubles(service, tmp_path, calls):
    plan = planned(tmp_path)
    plan.write()
    write(plan.directory / "metrics.jsonl", 7)
    assert len(drawn(plan, service)) == 1
    first = calls()
    logged = [(given["step"], given["numbers"]) for name, given in first if name == "log"]
    assert [step for step, _ in logged] == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7]
    assert logged[0] == (0, {"validation/loss": 4.5})
    assert logged[3] == (
        3, {"train/loss": 4 / 3, "train/mean_loss": 4 / 3, "train/learning_rate": 0.25}
    )  # fmt: skip
    assert logged[4] == (3, {"validation/loss": 1.5})
    assert first[-1][0] == "finish"
    assert first[0][1]["project"] == "heedful"
    assert first[0][1]["config"]["train"]["steps"] == 8
    write(plan.directory / "metrics.jsonl", 9, done=5)  # killed after 7 steps, of which 5 are saved
    drawn(plan, service)
    again = calls()
    assert [given["step"] for name, given in again if name == "log"] == [8, 9, 9]
    assert [again[0][1][key] for key in ("name", "resume")] == [first[0][1]["name"], "allow"]
    assert first[0][1]["name"].startswith("a run")
    if service == "wandb":
        assert first[0][1]["id"] == again[0][1]["id"]


def test_one_service_fails_and_another_does_not_and_training_is_as_without_them(tmp_path, calls):
    wandb = WANDB.replace('call("log"', "raise OSError(28, 'No space left') #")
    (tmp_path / "packages" / "wandb.py").write_text(wandb)
    (tmp_path / "plain").mkdir()
    plans = planned(tmp_path / "plain"), planned(tmp_path, log="trackio,wandb")
    _, events = (list(runs.events(plan, open_training(plan, runs.begin(plan)))) for plan in plans)
    words = [event.words for event in events if isinstance(event, Noticed)]
    assert words[0] == "trackio: in project heedful; `trackio show --project heedful` shows it"
    assert words[1].startswith("wandb: not sent (No API key configured")
    assert words[2] == "wandb: [Errno 28] No space left; training goes on without it."
    assert len(words) == 3
    assert isinstance(events[-1], Ended)
    said = calls()
    plain, logged = (read_metrics(plan.directory / "metrics.jsonl") for plan in plans)
    assert plain == logged
    losses = [line["loss"] for line in logged if "loss" in line]
    numbers = [given["numbers"] for name, given in said if name == "log"]
    assert [each["train/loss"] for each in numbers if "train/loss" in each] == losses
    assert said[-1][0] == "finish"


def test_an_error_in_training_finishes_what_was_logged(tmp_path, calls):
    plan = planned(tmp_path, log="trackio")
    running = runs.events(plan, open_training(plan, runs.begin(plan)))
    assert any(isinstance(event, Step) for event in running)
    running.close()
    assert [name for name, _ in calls()][-1] == "finish"


def test_a_run_that_replaces_another_is_drawn_from_its_first_checkpoint_on(tmp_path, calls):
    plan = planned(tmp_path, log="trackio")
    list(runs.events(plan, open_training(plan, runs.begin(plan))))
    first = calls()[0]
    for event in runs.events(plan, open_training(plan, runs.replace(plan))):
        again = calls()
        if isinstance(event, Noticed):
            break
        assert again == []
    assert (first[0], again[0][0]) == ("init", "init")
    assert first[1]["name"] != again[0][1]["name"]  # or both would be one curve
    assert has_plan(plan.directory)
    assert not (plan.directory / "state/fresh").exists()  # it has moved in


def test_a_package_that_is_missing_is_said_with_what_installs_it(tmp_path, calls, monkeypatch):
    check_services("trackio,wandb")
    check_services(None)
    with pytest.raises(ArgumentError, match=r"log = 'tensorbord'; expected one of tensorboard"):
        check_services("trackio,tensorbord")
    with pytest.raises(ArgumentError, match=r"log = ''; expected one of"):
        check_services(" , ")
    (tmp_path / "packages" / "wandb.py").unlink()
    (tmp_path / "packages" / "wandb").mkdir()  # as wandb leaves one wherever it ran
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    sys.path_importer_cache.clear()
    with pytest.raises(ArgumentError, match=r'wandb; pip install "heedful\[wandb\]"$'):
        planned(tmp_path, log="wandb")
    assert not (tmp_path / "a run").exists()


def test_tensorboard_reads_each_step_once(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plan = planned(tmp_path)
    plan.write()
    write(plan.directory / "metrics.jsonl", 7)
    drawn(plan, "tensorboard")
    write(plan.directory / "metrics.jsonl", 9, done=5)
    drawn(plan, "tensorboard")
    read = events.EventAccumulator(str(plan.directory / "logs" / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("train/loss")] == [*range(1, 10)]
    assert [event.value for event in read.Scalars("validation/loss")] == [4.5, 1.5, -1.5, -4.5]
