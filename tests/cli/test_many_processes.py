"""The commands in several processes of torchrun, and as `python -m heedful`."""

import json
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from command_checks import refused
from rich.filesize import decimal
from small_runs import recipe, write_plan

from heedful import __version__, torchrun
from heedful.cli.main import COMMANDS, SHARED
from heedful.cli.run_training import describe
from heedful.cli.suggested_commands import suggestion
from heedful.errors import ArgumentError
from heedful.processes import Processes
from heedful.train import new_plan, open_training, prepare_run
from heedful.train.memory_estimate import memory


@pytest.fixture
def process(monkeypatch):
    """Set the environment of one of two processes of torchrun."""
    monkeypatch.setattr(torchrun, "GRACE", 0.0)  # do not wait for torchrun to end the process

    def set_rank(rank):
        named = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
        for name, value in named.items():
            monkeypatch.setenv(name, str(value))

    return set_rank


def test_other_commands_are_refused_once_in_several_processes(process, cli):
    for command in {*COMMANDS} - {*SHARED}:
        process(0)
        refused(cli(command), f"heedful {command} in 2 processes", "without torchrun")
        process(1)
        assert cli(command) == (1, "", "")
    assert cli("train", "--help")[0] == 0


@pytest.mark.parametrize("wrong", ["--fly", "--steps -1", "--out a --resume --overwrite"])
def test_only_the_first_process_records_wrong_usage(wrong, process, cli, tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    process(1)
    assert cli("train", *wrong.split()) == (2, "", "")
    assert not path.exists()  # only the process that prints the error records it
    process(0)
    status, _, error = cli("train", *wrong.split())
    assert (status, error.count("\n")) == (2, 1)
    message = json.loads(path.read_text())["message"]["message"]
    assert message.startswith(("NoSuchOption", "BadParameter", "UsageError"))


@pytest.mark.parametrize(("cut", "processes", "words"), [(False, 2, "DDP"), (True, 5, "FSDP2")])
def test_processes_and_the_memory_of_each_are_printed(cut, processes, words, tmp_path):
    plan = write_plan(tmp_path, batch=12, shard=cut)
    prepared = prepare_run(plan)
    training = open_training(plan, prepared)
    training.processes, training.runner = Processes(1, processes), SimpleNamespace(is_sharded=cut)
    rows = dict(describe(plan, prepared, training))
    assert words in rows["processes"]
    needed = memory(prepared.config, plan.recipe.train, processes)
    assert decimal(needed) in rows["memory"]


def test_a_run_may_fit_only_when_sharded(tmp_path, monkeypatch):
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
