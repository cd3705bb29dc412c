"""Many processes, started by torchrun, train what one would have trained, whatever becomes of them.

Those of one machine and gloo; the same code runs with NCCL, on GPUs.
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


def made(*command, status=0):
    """What a command says, on standard output and error, each line in its place."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if line.startswith("heedful")]


def losses(directory):
    lines = read_metrics(directory / "metrics.jsonl")
    steps = [line["loss"] for line in lines if "loss" in line]
    return np.array(
        steps + [line["validation_loss"] for line in lines if "validation_loss" in line]
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs as one process trains them."""
    directory = tmp_path_factory.mktemp("alone")
    made(*PYTHON, trained_together.__file__, directory, *CASES)
    return directory


FEWER = ["adamw", "all", "pairs with muon"]


@pytest.mark.parametrize(
    ("number", "names", "shard"),
    [
        (2, [*CASES], []),
        (3, FEWER, []),
        (2, [*CASES], ["--shard"]),
        (3, FEWER, ["--shard"]),
        (2, FEWER, ["--shard", "--by-block"]),
    ],
)
def test_losses_are_those_of_one_process(number, names, shard, alone, tmp_path):
    made(*torchrun(number), trained_together.__file__, tmp_path, *names, *shard)
    for name in names:
        found, expected = losses(tmp_path / name), losses(alone / name)
        np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL, err_msg=name)
        ours, theirs = (read_metrics(d / name / "metrics.jsonl") for d in (tmp_path, alone))
        for line, other in zip(ours, theirs, strict=True):
            assert line.keys() == other.keys()
            if "watched" in line:
                assert alike(line["watched"], other["watched"]), (name, line, other)
        best, about = load_tensors(tmp_path / name / "model.safetensors")
        wanted, other = load_tensors(alone / name / "model.safetensors")
        assert about["step"] == other["step"]
        for tensor in wanted:
            np.testing.assert_allclose(best[tensor], wanted[tensor], atol=2e-4, err_msg=name)


def alike(found, expected):
    """Nested numbers that are nearly the same, and the same otherwise."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            alike(found[name], expected[name]) for name in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return found == expected or abs(found - expected) < 1e-3


# The command; what is asked of it in the environment happens in one of the processes, at a step.
# Who is left is slow: torchrun asks it to end before it has seen who is missing
COMMAND = """
import os, resource, signal, sys, time
from heedful import processes
from heedful.train import loop
hang_up = processes._abort_group
processes._abort_group = lambda: (time.sleep(1), hang_up())
take, what = loop.Training._step, eval(os.environ.get("WHAT", "[]"))
def step(self, metrics):
    for restarts, rank, at, kind in what:
        own = self.processes
        if (restarts, rank, at) == (own.restarts, own.rank, self.progress.step):
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
    """What one process that was never stopped trains."""
    made(*PYTHON, command, "train", command.parent / "text.txt", "--out",
         command.parent / "whole", *SMALL)  # fmt: skip
    return losses(command.parent / "whole")


def struck(monkeypatch, *what):
    """What is to happen: after how many restarts, to whom, after which step, and what."""
    monkeypatch.setitem(ENVIRONMENT, "WHAT", repr([tuple(one) for one in what]))


def goes_on(directory, *command):
    """The losses of a copy of a run, which goes on."""
    again = directory.with_name(f"{directory.name} {len(command)}")
    shutil.copytree(directory, again)
    said, errors = made(*command, "train", "--out", again, "--resume")
    assert "Continuing from step 8" in said
    assert not errors
    assert not [path for path in again.rglob(".*") if path.is_file()]
    return losses(again)


@pytest.mark.parametrize("shard", [[], ["--shard"]])
def test_what_two_began_goes_on_in_one_and_in_three(shard, command, whole, tmp_path, monkeypatch):
    """One of the two is killed; the other one says so in a line."""
    struck(monkeypatch, (0, 1, 10, int(signal.SIGKILL)))
    run = tmp_path / "run"
    text = command.parent / "text.txt"
    _, errors = made(*torchrun(2), command, "train", text, "--out", run, *SMALL, *shard, status=1)
    (error,) = errors
    assert "heedful: no answer from process 1 of 2; likely cause: it was killed" in error
    assert saved_step(run) == 8
    struck(monkeypatch)
    for again in ([*PYTHON, command], [*torchrun(3), command]):
        np.testing.assert_allclose(goes_on(run, *again), whole, rtol=0, atol=ATOL)


def test_what_one_began_goes_on_cut_in_two(command, whole, tmp_path, monkeypatch):
    struck(monkeypatch, (0, 0, 10, int(signal.SIGKILL)))
    run = tmp_path / "run"
    made(*PYTHON, command, "train", command.parent / "text.txt", "--out", run, *SMALL,
         status=-signal.SIGKILL)  # fmt: skip
    struck(monkeypatch)
    made(*torchrun(2, "-m"), "heedful", "train", "--out", run, "--resume", "--shard")
    np.testing.assert_allclose(losses(run), whole, rtol=0, atol=ATOL)
    made(*PYTHON, command, "train", "--out", run, "--resume", "--steps", "25", "--no-shard")
    assert saved_step(run) == 25


def test_torchrun_starts_again_what_died_and_it_goes_on(command, whole, tmp_path, monkeypatch):
    """Once it dies before its first checkpoint, once after it."""
    run, kill = tmp_path / "run", int(signal.SIGKILL)
    struck(monkeypatch, (0, 1, 2, kill), (1, 0, 10, kill))
    again = *torchrun(2, "--max-restarts", "2"), command, "train", command.parent / "text.txt"
    said, errors = made(*again, "--out", run, *SMALL, "--resume", "--shard")
    assert read_plan(run).sources == (str(command.parent / "text.txt"),)
    np.testing.assert_allclose(losses(run), whole, rtol=0, atol=ATOL)
    assert "Continuing from step 8" in said
    assert ["heedful: process 1 of 2" in error for error in errors] == [False, True]


def test_ctrl_c_stops_all_at_the_same_step_saved(command, tmp_path):
    run = tmp_path / "run"
    long = ["--steps", "100000", "--save-every", "100000"]
    process = subprocess.Popen(
        [*torchrun(2), command, "train", command.parent / "text.txt", "--out", run, *SMALL, *long],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    wait_for(run / "metrics.jsonl", b'"step": 20,')
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    (step,) = re.findall(r"Stopped and saved at step ([\d,]+)\.", said)
    step = int(step.replace(",", ""))
    assert saved_step(run) == step
    assert "heedful:" not in said
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == step
    made(*torchrun(2), command, "train", "--out", run, "--resume", "--steps", str(step + 3))
    assert saved_step(run) == step + 3


def wait_for(path, content):
    for _ in range(600):
        if path.is_file() and content in path.read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError(f"no {content} in {path}")


def test_who_hangs_is_noticed_and_named(command, tmp_path, monkeypatch):
    struck(monkeypatch, (0, 1, 6, int(signal.SIGSTOP)))
    process = subprocess.Popen(
        [*torchrun(3), command, "train", command.parent / "text.txt", "--out", tmp_path / "run",
         *SMALL, "--timeout", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    while "heedful" not in (error := process.stderr.readline()) and error:
        pass
    assert "no answer from process 1 of 3 in 4 s; likely cause: it hangs" in error
    (hanging,) = re.findall(r"process (\d+)\n", os.read(process.stdout.fileno(), 1 << 16).decode())
    os.kill(int(hanging), signal.SIGCONT)  # or torchrun waits for it
    _, said = process.communicate()
    assert "heedful:" not in said
    assert "no answer from process 1" in said.partition("Root Cause")[2]
    assert saved_step(tmp_path / "run") == 4


@pytest.mark.parametrize("shard", [[], ["--shard"]])
def test_a_full_disk_is_said_once_and_what_was_saved_is_kept(shard, command, tmp_path, monkeypatch):
    run = tmp_path / "run"
    struck(monkeypatch, (0, 0, 6, "full"))
    text = command.parent / "text.txt"
    _, (error,) = made(*torchrun(2), command, "train", text, "--out", run, *SMALL, *shard, status=1)
    assert "cannot write" in error
    assert "File too large" in error
    assert saved_step(run) == 4
    struck(monkeypatch)
    made(*PYTHON, command, "train", "--out", run, "--resume")
    assert saved_step(run) == 24


def test_an_error_of_one_is_said_by_it_and_by_torchrun(command, tmp_path, monkeypatch):
    struck(monkeypatch, (0, 1, 3, "a fault of its own"))
    done = subprocess.run(
        [*torchrun(2), command, "train", command.parent / "text.txt", "--out", tmp_path / "run",
         *SMALL], capture_output=True, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("heedful")]
    assert lines == [
        "heedful: process 1 of 2: unexpected ValueError: a fault of its own; see where with "
        "--debug, and please report it"
    ]
    root = done.stderr.partition("Root Cause")[2]
    assert "rank      : 1 (local_rank: 1)" in root
    assert "raise ValueError(kind)" in root


def test_what_cannot_be_shared_out_is_refused_before_anything_is_written(command, tmp_path):
    train = *torchrun(2), command, "train", command.parent / "text.txt", "--out", tmp_path / "run"
    for options, wanted in (
        (["--batch", "1"], "a batch of 1 for 2 processes"),
        (["--bathc", "4"], "--bathc"),
    ):
        _, (error,) = made(*train, *SMALL, *options, status=1)
        assert wanted in error
        assert not (tmp_path / "run").exists()
