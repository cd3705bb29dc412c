"""Services that plot a run receive all its numbers, and their errors do not stop training.

Their packages are replaced by modules that log their calls.
"""

import json
import sys

import pytest
from small_runs import write_plan

from heedful.errors import ArgumentError
from heedful.train import Ended, Step, open_training, prepare_run, read_metrics, read_plan
from heedful.train.events import Noticed
from heedful.train.loggers import services_of
from heedful.train.run import events
from heedful.train.run_directory import lock_run

FAKE_PACKAGE = """
import json, os
def call(name, /, **arguments):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([name, arguments], default=str) + "\\n")
class Settings:
    def __init__(self, *, console, silent): pass
def init(*, project, name, config, resume, **more):
    print("an unwanted line")
    call("init", project=project, name=name, resume=resume, config=config, **more)
    if "dir" in more:  # as wandb does
        os.makedirs(folder := os.path.join(more["dir"], "wandb"), exist_ok=True)
        if not os.path.lexists(link := f"{folder}/latest-run"):
            os.symlink("run-1", link)
    return Run()
class Run:
    url, dir = "https://run", "nowhere"
    def log(self, data, step=None): call("log", step=step, numbers=data)
    def finish(self): call("finish")
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Replace the services' packages by fakes; yield a function that returns and clears the log."""
    folder, path = tmp_path / "packages", tmp_path / "calls.jsonl"
    folder.mkdir()
    for name in ("wandb", "trackio"):
        (folder / f"{name}.py").write_text(FAKE_PACKAGE)
        monkeypatch.delitem(sys.modules, name, raising=False)
    path.touch()
    monkeypatch.setenv("CALLS", str(path))
    monkeypatch.syspath_prepend(folder)

    def take_calls():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("")
        return lines

    yield take_calls
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


def run(plan, prepared, stop_at=None):
    """Train from the latest checkpoint, if any, to the end or `stop_at`; return the events."""
    training = open_training(plan, prepared)
    training.restore()
    run_events = []
    with lock_run(plan.directory):
        for event in events(plan, training):
            run_events.append(event)
            if isinstance(event, Step) and event.step == stop_at:
                training.stop()
    return run_events


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_a_resumed_run_continues_its_curve(service, tmp_path, calls, capsys):
    plan = write_plan(tmp_path, steps=8, evaluate_every=4, log=service)
    run(plan, prepare_run(plan), stop_at=5)
    first = calls()
    run(read_plan(plan.directory), prepare_run(plan))
    second = calls()
    assert capsys.readouterr().out == ""
    (_, first_init), (_, second_init) = first[0], second[0]
    assert [first_init.get(key) for key in ("name", "id")] == [
        second_init.get(key) for key in ("name", "id")
    ]
    assert first_init["project"] == "heedful"
    assert first_init["resume"] == "allow"
    assert first_init["config"]["train"]["steps"] == 8
    assert first[-1][0] == second[-1][0] == "finish"
    logged = [arguments for name, arguments in first + second if name == "log"]
    lines = read_metrics(plan.directory / "metrics.jsonl")
    assert [arguments["step"] for arguments in logged] == [line["step"] for line in lines]
    assert logged[0] == {"step": 0, "numbers": {"validation/loss": lines[0]["validation_loss"]}}
    assert logged[1]["numbers"] == {
        "train/loss": lines[1]["loss"],
        "train/mean_loss": lines[1]["mean_loss"],
        "train/learning_rate": lines[1]["rate"],
    }


def test_one_service_fails_and_another_does_not_and_training_is_as_without_them(tmp_path, calls):
    failing = FAKE_PACKAGE.replace('call("log"', "raise OSError(28, 'No space left') #")
    (tmp_path / "packages" / "wandb.py").write_text(failing)
    plans = []
    for name, log in (("plain", None), ("logged", "trackio, wandb")):
        (tmp_path / name).mkdir()
        plans.append(write_plan(tmp_path / name, steps=8, evaluate_every=4, log=log))
    _, run_events = (run(plan, prepare_run(plan)) for plan in plans)
    words = [event.message for event in run_events if isinstance(event, Noticed)]
    assert [line.split(":")[0] for line in words] == ["trackio", "wandb", "wandb"]
    assert "No space left" in words[2]
    assert isinstance(run_events[-1], Ended)
    plain, logged = (read_metrics(plan.directory / "metrics.jsonl") for plan in plans)
    assert plain == logged
    numbers = [arguments["numbers"] for name, arguments in calls() if name == "log"]
    losses = [line["loss"] for line in logged if "loss" in line]
    assert [each["train/loss"] for each in numbers if "train/loss" in each] == losses


def test_after_an_error_in_training_services_are_finished(tmp_path, calls):
    plan = write_plan(tmp_path, log="trackio")
    running = events(plan, open_training(plan, prepare_run(plan)))
    assert any(isinstance(event, Step) for event in running)
    running.close()
    assert calls()[-1][0] == "finish"


def test_a_missing_service_is_refused_with_the_command_that_installs_it(
    tmp_path, calls, monkeypatch
):
    assert services_of("trackio, wandb") == ["trackio", "wandb"]
    assert services_of(None) == services_of("") == []
    for unknown in ("trackio,tensorbord", " , "):
        with pytest.raises(ArgumentError, match=r"expected .*tensorboard"):
            services_of(unknown)
    (tmp_path / "packages" / "wandb.py").unlink()
    (tmp_path / "packages" / "wandb").mkdir()  # wandb creates such a folder where it runs
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    sys.path_importer_cache.clear()
    with pytest.raises(ArgumentError, match=r'wandb; pip install "heedful\[wandb\]"$'):
        write_plan(tmp_path, log="wandb")
    assert not (tmp_path / "run").exists()


def test_tensorboard_reads_each_step_once_also_after_a_kill(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plan = write_plan(tmp_path, steps=9, evaluate_every=3, save_every=5, log="tensorboard")
    for event in events(plan, open_training(plan, prepare_run(plan))):
        if isinstance(event, Step) and event.step == 8:
            break  # the checkpoint is that of step 5
    run(read_plan(plan.directory), prepare_run(plan))
    read = reading.EventAccumulator(str(plan.directory / "logs" / "tensorboard"))
    read.Reload()
    lines = read_metrics(plan.directory / "metrics.jsonl")
    for tag, name in (("train/loss", "loss"), ("validation/loss", "validation_loss")):
        expected = [line for line in lines if name in line]
        assert [event.step for event in read.Scalars(tag)] == [line["step"] for line in expected]
        values = [event.value for event in read.Scalars(tag)]
        assert values == pytest.approx([line[name] for line in expected])
