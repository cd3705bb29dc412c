"""What a person sees of `heedful` in several processes, or as a module of Python."""

import json
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from small_runs import recipe, started
from typed import refused

from heedful import __version__, torchrun
from heedful.cli.main import COMMANDS, SHARED
from heedful.cli.run_training import describe
from heedful.cli.suggested_commands import suggestion
from heedful.errors import ArgumentError
from heedful.processes import Processes
from heedful.train import new_plan, open_training, prepare_run
from heedful.train.memory_estimate import in_words, memory


@pytest.fixture
def process(monkeypatch):
    """Be one of two processes that torchrun started, as often as one likes."""
    monkeypatch.setattr(torchrun, "GRACE", 0.0)  # in which torchrun would end it

    def be(rank):
        named = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
        for name, value in named.items():
            monkeypatch.setenv(name, str(value))

    return be


def test_what_is_not_shared_out_is_refused_once(process, said):
    for command in {*COMMANDS} - {*SHARED}:
        process(0)
        refused(said(command), f"heedful {command} in 2 processes", "without torchrun")
        process(1)
        assert said(command) == (1, "", "")
    assert said("train", "--help")[0] == 0


@pytest.mark.parametrize("wrong", ["--fly", "--steps -1", "--out a --resume --overwrite"])
def test_wrong_usage_is_recorded_for_torchrun_by_one(wrong, process, said, tmp_path, monkeypatch):
    heard = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(heard))
    process(1)
    assert said("train", *wrong.split()) == (2, "", "")
    assert not heard.exists()  # all find it: torchrun is to name the one that says it
    process(0)
    status, _, error = said("train", *wrong.split())
    assert (status, error.count("\n")) == (2, 1)
    message = json.loads(heard.read_text())["message"]["message"]
    assert message.startswith(("NoSuchOption", "BadParameter", "UsageError"))


@pytest.mark.parametrize(("cut", "processes", "words"), [(False, 2, "DDP"), (True, 5, "FSDP2")])
def test_processes_and_the_memory_of_each_are_told(cut, processes, words, tmp_path):
    plan = started(tmp_path, batch=12, shard=cut)
    prepared = prepare_run(plan)
    training = open_training(plan, prepared)
    training.here, training.passes = Processes(1, processes), SimpleNamespace(is_cut=cut)
    rows = dict(describe(plan, prepared, training))
    assert words in rows["processes"]
    needed = memory(prepared.config, plan.recipe.train, processes)
    assert in_words(needed) in rows["memory"]


def test_what_fits_when_it_is_shared_out_is_planned(tmp_path, monkeypatch):
    wide = recipe(batch=12, shard=True, optimizer="adamw").changed({"model": {"width": 2048}})
    has = memory(wide.model, wide.train) // 2
    monkeypatch.setattr("heedful.train.memory_estimate.machine_memory", lambda device: has)
    new_plan(tmp_path / "run", (), wide, processes=12)
    with pytest.raises(ArgumentError, match="of memory"):
        new_plan(tmp_path / "run", (), wide)


def test_a_suggestion_calls_heedful_as_it_was_called(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert suggestion("plot", "my run") == "heedful plot 'my run'"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    words = shlex.split(suggestion("plot", "my run"))
    assert words == [sys.executable, "-m", "heedful", "plot", "my run"]
    version = subprocess.run([*words[:3], "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.split()[-1] == __version__
