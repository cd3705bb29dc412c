"""Services that draw a run are told each of its numbers once, and can do training no harm.

Their packages are played by modules that write down what is asked of them.
"""

import dataclasses
import json
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from heedful.errors import ArgumentError
from heedful.files import read_checked_json
from heedful.train import PRESETS, Ended, new_plan, open_training, read_metrics
from heedful.train import logs as logs_module
from heedful.train import run as runs
from heedful.train.events import Noticed, Saved
from heedful.train.follower import follow
from heedful.train.services import check_services

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
    def __init__(self, *, console, silent, init_timeout): pass
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
        self.dir, self.step = str(dir / "wandb" / "offline-run" / "files"), 0
    def log(self, data, step=None, commit=None): call("log", step=step, numbers=data)
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
EVENTS = """
from calls import call
class EventFileWriter:
    def __init__(self, logdir): call("init", folder=logdir)
    def add_event(self, event):
        if "session_log" in event: call("purge", step=event["step"])
        elif "metadata" in event["summary"][0]: call("text", value=event["summary"][0])
        else:
            numbers = {value["tag"]: value["simple_value"] for value in event["summary"]}
            call("log", step=event["step"], numbers=numbers)
    def flush(self): pass
    def close(self): call("finish")
"""
PROTO = "tensorboard/compat/proto/"
FAKES = {
    "calls.py": CALLS,
    "wandb.py": WANDB,
    "trackio.py": TRACKIO,
    "tensorboard/__init__.py": "",
    "tensorboard/summary/writer/event_file_writer.py": EVENTS,
    PROTO + "event_pb2.py": "Event = dict\nclass SessionLog(dict): START = 1\n",
    PROTO + "summary_pb2.py": "def Summary(value): return value\nSummary.Value = dict\n"
    "class SummaryMetadata(dict): PluginData = dict\n",
    PROTO + "tensor_pb2.py": "def TensorProto(dtype, string_val): return str(string_val)\n",
}


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
    names = ("wandb", "trackio", "tensorboard", "calls")
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


def write(path, last):
    """Lines of steps up to `last`, a validation after each third and before the first."""
    lines = [{"step": 0, "validation_loss": 4.5}]
    for step in range(1, last + 1):
        lines.append({"step": step, "loss": 4 / step, "mean_loss": 5 / step, "rate": 0.25})
        lines += [{"step": step, "validation_loss": 4.5 - step}] * (step % 3 == 0)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def followed(directory, service, start):
    ended, words = threading.Event(), []
    ended.set()
    follow(directory, service, start, ended, words.append)
    return words


ALL_OF_3 = {"train/loss": 4 / 3, "train/mean_loss": 5 / 3, "train/learning_rate": 0.25,
            "validation/loss": 1.5}  # fmt: skip


@pytest.mark.parametrize("service", ["tensorboard", "wandb", "trackio"])
def test_a_run_that_goes_on_is_the_same_curve_without_gaps_or_doubles(service, tmp_path, calls):
    plan = planned(tmp_path)
    plan.write()
    directory, metrics = plan.directory, plan.directory / "metrics.jsonl"
    write(metrics, 7)
    assert len(followed(directory, service, 0)) == 1
    first = calls()
    logged = {given["step"]: given["numbers"] for name, given in first if name == "log"}
    assert [name for name, _ in first].count("log") == 8
    assert list(logged) == [*range(8)]
    assert logged[0] == {"validation/loss": 4.5}
    assert logged[3] == ALL_OF_3
    assert first[-1][0] == "finish"
    note = read_checked_json(directory / "logs" / f"{service}.json")
    assert note["step"] == 7
    if service != "tensorboard":
        assert first[0][1]["project"] == "heedful"
        assert first[0][1]["config"]["train"]["steps"] == 8

    write(metrics, 9)  # killed after 7 steps, of which 5 were saved
    followed(directory, service, 5)
    again = calls()
    steps = [given["step"] for name, given in again if name == "log"]
    if service == "tensorboard":
        assert [given for name, given in again if name == "purge"] == [{"step": 6}]
        assert steps == [6, 7, 8, 9]
    else:
        assert steps == [8, 9]
        assert [again[0][1][key] for key in ("name", "resume")] == [first[0][1]["name"], "allow"]
        assert first[0][1]["name"] in ("a run", f"a run-{note['id']}")
    assert read_checked_json(directory / "logs" / f"{service}.json") == {**note, "step": 9}


def test_a_line_that_is_half_written_waits_for_its_other_half(tmp_path, calls):
    plan = planned(tmp_path)
    plan.write()
    path = plan.directory / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')

    class Ended(threading.Event):
        def wait(self, seconds):
            path.write_text(path.read_text() + 'ss": 1.0}\nno json\n{"step": 3, "loss": 0.5}\n{"st')
            self.set()

    follow(plan.directory, "trackio", 0, Ended(), lambda words: None)
    told = [given for name, given in calls() if name == "log"]
    assert told == [{"step": n, "numbers": {"train/loss": 4 / 2**n}} for n in (1, 2, 3)]


def test_one_service_fails_and_another_does_not_and_training_is_as_without_them(
    tmp_path, calls, monkeypatch
):
    wandb = WANDB.replace('call("log"', "raise OSError(28, 'No space left') #")
    (tmp_path / "packages" / "wandb.py").write_text(wandb)
    monkeypatch.setattr(logs_module, "PATIENCE", 60.0)
    (tmp_path / "plain").mkdir()
    plans = planned(tmp_path / "plain"), planned(tmp_path, log="trackio,wandb")
    _, events = (list(runs.events(plan, open_training(plan, runs.begin(plan)))) for plan in plans)
    words = sorted(event.words for event in events if isinstance(event, Noticed))
    assert words[0] == "trackio: in project heedful; `trackio show --project heedful` shows it"
    assert words[1] == "wandb: [Errno 28] No space left; training goes on without it."
    assert words[2].startswith("wandb: not sent (No API key configured), but kept in ")
    assert len(words) == 3
    assert isinstance(events[-1], Ended)
    told = {given["step"]: given["numbers"] for name, given in calls() if name == "log"}
    plain, logged = (read_metrics(plan.directory / "metrics.jsonl") for plan in plans)
    assert plain == logged
    losses = [line["loss"] for line in logged if "loss" in line]
    assert [told[step]["train/loss"] for step in range(1, 9)] == losses


def test_a_service_that_hangs_is_not_waited_for(tmp_path, calls, monkeypatch):
    (tmp_path / "packages" / "trackio.py").write_text("import time\ntime.sleep(9)\n")
    monkeypatch.setattr(logs_module, "PATIENCE", 0.2)
    plan = planned(tmp_path)
    plan.write()
    with logs_module.logging_to("trackio", plan.directory, 0) as logs:
        logs.begin()
        began = [*logs._following.values()]
        logs.end()
        assert [*logs.said()] == ["trackio is not done yet, and goes on sending by itself."]
    assert began[0].poll() is None
    began[0].kill()
    began[0].wait()


def test_what_cannot_be_started_is_told_of(tmp_path, calls, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no process left")

    monkeypatch.setattr(logs_module.subprocess, "Popen", refuse)
    with logs_module.logging_to("trackio", tmp_path, 0) as logs:
        logs.begin()
        assert [*logs.said()] == ["trackio: no process left; training goes on without it."]


def test_a_run_that_replaces_another_is_drawn_from_its_first_checkpoint_on(
    tmp_path, calls, monkeypatch
):
    begun = []
    monkeypatch.setattr(
        runs, "logging_to", contextmanager(lambda *_: iter([SimpleNamespace(
            begin=lambda: begun.append(True), end=lambda: None, said=list)])),
    )  # fmt: skip
    plan = planned(tmp_path, log="trackio")
    list(runs.events(plan, open_training(plan, runs.begin(plan))))
    (plan.directory / "logs").mkdir()
    (plan.directory / "logs" / "trackio.json").write_text("{}")
    begun.clear()
    for event in runs.events(plan, open_training(plan, runs.replace(plan))):
        assert bool(begun) >= isinstance(event, Saved)
        assert (plan.directory / "logs").exists() != bool(begun)


def test_a_package_that_is_missing_is_said_with_what_installs_it(tmp_path, calls, monkeypatch):
    check_services("trackio,wandb")
    check_services(None)
    with pytest.raises(ArgumentError, match=r"log = 'tensorbord'; expected one of tensorboard"):
        check_services("trackio,tensorbord")
    with pytest.raises(ArgumentError, match=r"log = ','; expected one of"):
        check_services(" , ")
    (tmp_path / "packages" / "wandb.py").unlink()
    (tmp_path / "packages" / "wandb").mkdir()  # as wandb leaves one wherever it ran
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    sys.path_importer_cache.clear()
    with pytest.raises(ArgumentError, match=r'wandb; pip install "heedful\[wandb\]"$'):
        planned(tmp_path, log="wandb")
    assert not (tmp_path / "a run").exists()


def test_tensorboard_itself_reads_each_step_once(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plan = planned(tmp_path)
    plan.write()
    write(plan.directory / "metrics.jsonl", 7)
    followed(plan.directory, "tensorboard", 0)
    write(plan.directory / "metrics.jsonl", 9)
    followed(plan.directory, "tensorboard", 5)
    read = events.EventAccumulator(str(plan.directory / "logs" / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("train/loss")] == [*range(1, 10)]
    assert [event.value for event in read.Scalars("validation/loss")] == [4.5, 1.5, -1.5, -4.5]
