"""Several processes under torchrun train the same model as one process, also after failures.

They run on one machine with gloo; the same code runs on GPUs with NCCL.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import trained_together
from trained_together import CASES, TEXT

from heedful.files import load_tensors
from heedful.train import read_metrics
from heedful.train.checkpoint import saved_step
from heedful.train.plan import read_plan

PYTHON = [sys.executable]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = ["--context-length", "32", "--width", "24", "--layers", "2", "--heads", "2", "--dropout",
         "0", "--batch", "5", "--accumulation", "2", "--tokenizer", "characters", "--device", "cpu",
         "--steps", "24", "--evaluate-every", "6", "--save-every", "4",
         "--precision", "float32"]  # fmt: skip
ATOL = 1e-5


def torchrun(number, *more):
    script = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--shutdown_timeout"]
    return [*script, "5", "--nproc-per-node", str(number), *more]


def call(*command, status=0):
    """Run a command; return its standard output, and heedful's lines on standard error."""
    process = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert process.returncode == status, process.stdout + process.stderr
    errors = [line for line in process.stderr.splitlines() if line.startswith("heedful")]
    return process.stdout, errors


def losses(directory):
    lines = read_metrics(directory / "metrics.jsonl")
    steps = [line["loss"] for line in lines if "loss" in line]
    return np.array(
        steps + [line["validation_loss"] for line in lines if "validation_loss" in line]
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The directory of the runs that one process trains."""
    directory = tmp_path_factory.mktemp("alone")
    call(*PYTHON, trained_together.__file__, directory, *CASES)
    return directory


FEWER = ["adamw", "all", "pairs with muon"]


DIVISIONS = [
    (2, [*CASES], []), (3, FEWER, []), (2, [*CASES], ["--shard"]), (3, FEWER, ["--shard"]),
]  # fmt: skip


@pytest.mark.parametrize(("number", "names", "shard"), DIVISIONS)
def test_losses_are_those_of_one_process(number, names, shard, alone, tmp_path):
    call(*torchrun(number), trained_together.__file__, tmp_path, *names, *shard)
    for name in names:
        shared, expected = losses(tmp_path / name), losses(alone / name)
        np.testing.assert_allclose(shared, expected, rtol=0, atol=ATOL, err_msg=name)
        ours, theirs = (read_metrics(d / name / "metrics.jsonl") for d in (tmp_path, alone))
        for line, other in zip(ours, theirs, strict=True):
            assert line.keys() == other.keys()
            if "watched" in line:
                assert similar(line["watched"], other["watched"]), (name, line, other)
        best, about = load_tensors(tmp_path / name / "model.safetensors")
        true, other = load_tensors(alone / name / "model.safetensors")
        assert about["step"] == other["step"]
        for tensor in true:
            np.testing.assert_allclose(best[tensor], true[tensor], atol=2e-4, err_msg=name)


def similar(value, expected):
    """Return whether nested values are equal, up to 1e-3 for numbers."""
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            similar(value[name], expected[name]) for name in expected
        )
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(similar, value, expected))
    return value == expected or abs(value - expected) < 1e-3


# The command with failures at given steps of given processes, from the variable FAILURES. The
# other processes abort slowly, so torchrun ends them before they notice the missing one.
COMMAND = """
import os, resource, signal, sys, time
from heedful import processes
from heedful.train import loop
hang_up = processes._abort_group
processes._abort_group = lambda: (time.sleep(1), hang_up())
take, failures = loop.Training._step, eval(os.environ.get("FAILURES", "[]"))
def step(self, metrics):
    for restarts, rank, number, kind in failures:
        group = self.processes
        if (restarts, rank, number) == (group.restarts, group.rank, self.progress.step):
            print("process", os.getpid(), flush=True)
            if isinstance(kind, int):
                os.kill(os.getpid(), kind)
            elif kind == "full":
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            else:
                raise ValueError(kind)
    return take(self, metrics)
loop.Training._step = step
from heedful.cli import main
main()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    path = tmp_path_factory.mktemp("command") / "command.py"
    path.write_text(COMMAND)
    (path.parent / "text.txt").write_text(TEXT)
    (path.parent / "other.txt").write_text("".join(reversed(TEXT.splitlines(keepends=True))))
    return path


@pytest.fixture(scope="module")
def whole(command):
    """The losses of one uninterrupted process."""
    call(*PYTHON, command, "train", command.parent / "text.txt", "--out",
         command.parent / "whole", *SMALL)  # fmt: skip
    return losses(command.parent / "whole")


def set_failures(monkeypatch, *failures):
    """Set failures: (restarts before it, rank, step, a signal or the kind of failure) each."""
    monkeypatch.setitem(ENVIRONMENT, "FAILURES", repr(list(failures)))


def resumed_losses(directory, *command):
    """Resume a copy of a run, and return its losses."""
    copy = directory.with_name(f"{directory.name} {len(command)}")
    shutil.copytree(directory, copy)
    output, errors = call(*command, "train", "--out", copy, "--resume")
    assert "Continuing from step 8" in output
    assert not errors
    assert not [path for path in copy.rglob(".*") if path.is_file()]
    return losses(copy)


@pytest.mark.parametrize("shard", [[], ["--shard"]])
def test_a_run_of_two_resumes_in_one_and_in_three(shard, command, whole, tmp_path, monkeypatch):
    """One of the two is killed; the other reports it in one line."""
    set_failures(monkeypatch, (0, 1, 10, int(signal.SIGKILL)))
    run = tmp_path / "run"
    text = command.parent / "text.txt"
    _, errors = call(*torchrun(2), command, "train", text, "--out", run, *SMALL, *shard, status=1)
    (error,) = errors
    assert "heedful: no answer from process 1 of 2; likely cause: it was killed" in error
    assert saved_step(run) == 8
    set_failures(monkeypatch)
    for resume in ([*PYTHON, command], [*torchrun(3), command]):
        np.testing.assert_allclose(resumed_losses(run, *resume), whole, rtol=0, atol=ATOL)


def test_a_run_of_one_process_resumes_sharded_over_two(command, whole, tmp_path, monkeypatch):
    set_failures(monkeypatch, (0, 0, 10, int(signal.SIGKILL)))
    run = tmp_path / "run"
    call(*PYTHON, command, "train", command.parent / "text.txt", "--out", run, *SMALL,
         status=-signal.SIGKILL)  # fmt: skip
    set_failures(monkeypatch)
    call(*torchrun(2, "-m"), "heedful", "train", "--out", run, "--resume", "--shard")
    np.testing.assert_allclose(losses(run), whole, rtol=0, atol=ATOL)
    call(*PYTHON, command, "train", "--out", run, "--resume", "--steps", "25", "--no-shard")
    assert saved_step(run) == 25


def test_torchrun_restarts_processes_and_the_run_resumes(command, whole, tmp_path, monkeypatch):
    """A process is killed before the first checkpoint, then after it."""
    run, kill = tmp_path / "run", int(signal.SIGKILL)
    set_failures(monkeypatch, (0, 1, 2, kill), (1, 0, 10, kill))
    train = *torchrun(2, "--max-restarts", "2"), command, "train", command.parent / "text.txt"
    output, errors = call(*train, "--out", run, *SMALL, "--resume", "--shard")
    assert read_plan(run).sources == (str(command.parent / "text.txt"),)
    np.testing.assert_allclose(losses(run), whole, rtol=0, atol=ATOL)
    assert "Continuing from step 8" in output
    assert ["heedful: process 1 of 2" in error for error in errors] == [False, True]


def test_ctrl_c_stops_all_processes_at_the_saved_step(command, tmp_path):
    run = tmp_path / "run"
    long = ["--steps", "100000", "--save-every", "100000"]
    process = subprocess.Popen(
        [*torchrun(2), command, "train", command.parent / "text.txt", "--out", run, *SMALL, *long],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    wait_for(run / "metrics.jsonl", b'"step": 20,')
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    (step,) = re.findall(r"Stopped and saved at step ([\d,]+)\.", output)
    step = int(step.replace(",", ""))
    assert saved_step(run) == step
    assert "heedful:" not in output
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == step
    call(*torchrun(2), command, "train", "--out", run, "--resume", "--steps", str(step + 3))
    assert saved_step(run) == step + 3


def wait_for(path, content):
    for _ in range(600):
        if path.is_file() and content in path.read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError(f"no {content} in {path}")


def test_a_process_that_hangs_is_reported_with_its_rank(command, tmp_path, monkeypatch):
    set_failures(monkeypatch, (0, 1, 6, int(signal.SIGSTOP)))
    process = subprocess.Popen(
        [*torchrun(3), command, "train", command.parent / "text.txt", "--out", tmp_path / "run",
         *SMALL, "--timeout", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    while "heedful" not in (error := process.stderr.readline()) and error:
        pass
    assert "no answer from process 1 of 3 in 4 s; likely cause: it hangs" in error
    (hanging,) = re.findall(r"process (\d+)\n", os.read(process.stdout.fileno(), 1 << 16).decode())
    os.kill(int(hanging), signal.SIGCONT)  # otherwise torchrun would wait for it
    _, error = process.communicate()
    assert "heedful:" not in error
    assert "no answer from process 1" in error.partition("Root Cause")[2]
    assert saved_step(tmp_path / "run") == 4


@pytest.mark.parametrize("shard", [[], ["--shard"]])
def test_a_full_disk_is_reported_and_a_checkpoint_remains(shard, command, tmp_path, monkeypatch):
    run = tmp_path / "run"
    set_failures(monkeypatch, (0, 0, 6, "full"))
    text = command.parent / "text.txt"
    _, (error,) = call(*torchrun(2), command, "train", text, "--out", run, *SMALL, *shard, status=1)
    assert "cannot write" in error
    assert "File too large" in error
    assert saved_step(run) == 4
    set_failures(monkeypatch)
    call(*PYTHON, command, "train", "--out", run, "--resume")
    assert saved_step(run) == 24


def test_an_error_of_a_process_is_reported_by_it_and_by_torchrun(command, tmp_path, monkeypatch):
    set_failures(monkeypatch, (0, 1, 3, "a fault"))
    process = subprocess.run(
        [*torchrun(2), command, "train", command.parent / "text.txt", "--out", tmp_path / "run",
         *SMALL], capture_output=True, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    lines = [line for line in process.stderr.splitlines() if line.startswith("heedful")]
    assert lines == [
        "heedful: process 1 of 2: unexpected ValueError: a fault; --debug shows where; "
        "please report the error"
    ]
    root = process.stderr.partition("Root Cause")[2]
    assert "rank      : 1 (local_rank: 1)" in root
    assert "raise ValueError(kind)" in root


def test_wrong_options_are_refused_before_any_file_is_written(command, tmp_path):
    train = *torchrun(2), command, "train", command.parent / "text.txt", "--out", tmp_path / "run"
    for options, words in (
        (["--batch", "1"], "a batch of 1 for 2 processes"),
        (["--bathc", "4"], "--bathc"),
    ):
        _, (error,) = call(*train, *SMALL, *options, status=1)
        assert words in error
        assert not (tmp_path / "run").exists()
