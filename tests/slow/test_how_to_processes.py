"""docs/how-to/processes.md, done as it says, as far as one machine can.

`gpu` stands for two processes, `node1` and `node2` for this machine, and Slurm for a few lines of
shell that start what `srun` is given once for each node.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heedful.device import choose_matmul_dtype

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/processes.md").read_text("utf-8")
TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(200))
SMALL = ["--batch", "4", "--width", "16", "--layers", "2", "--heads", "2", "--context-length", "32",
         "--vocabulary", "300", "--steps", "4"]  # fmt: skip
SRUN = """#!/bin/bash
for node in $(seq 0 $((SLURM_NNODES - 1))); do
    SLURM_NODEID=$node "$@" & started+=($!)
done
for each in "${started[@]}"; do wait "$each" || status=$?; done
exit ${status:-0}
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames nodes[1-2]" ] && printf 'localhost\\nlocalhost\\n'
"""


def commands(heading):
    """The commands of a part of the page, and what is shown under each."""
    part = PAGE.split(f"\n## {heading}")[1].split("\n## ")[0]
    blocks = "".join(re.findall(r"^```(?:sh|console)\n(.*?)^```$", part, re.M | re.S))
    told = []
    for line in re.sub(r"\\\n +", "", blocks).splitlines():
        if re.match(r"\$ |torchrun |heedful |sbatch ", line):
            told.append((line.removeprefix("$ "), []))
        elif told:
            told[-1][1].append(line)
    return told


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("processes")
    (place / "book.txt").write_text(TEXT)
    return place


@pytest.fixture
def begin(folder):
    """Start a command of the page, with options after its own; `ended` gives what it said."""

    def call(line, *more, **variables):
        words = [*shlex.split(line), *more]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80", "PATH": path}
        return subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **kept, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return call


def ended(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output, errors


def steps(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "loss" in line]


@pytest.mark.parametrize("heading", ["Two processes on this machine", "Replicate the model"])
def test_what_is_shown_of_two_processes_is_what_they_say(heading, begin, folder):
    """But for the losses, the speed and the type that a machine is fast at: it makes four steps."""
    (line, shown) = commands(heading)[-1]
    output, errors = ended(begin(line, "--steps", "4"))
    assert errors == ""
    said = output.splitlines()
    products = str(choose_matmul_dtype("auto", torch.device("cpu"))).removeprefix("torch.")
    for told in shown:
        told = told.replace("products in bfloat16", f"products in {products}")
        assert told in said or re.match(r"…|step 100", told), f"{told!r} is not in\n{output}"
    assert "step 4/4  " in output
    assert re.search(r'^Next:\n  heedful generate runs/\w+ ".*"$', output, re.M)


def test_a_run_that_was_cut_goes_on_in_three_processes_and_in_one(begin, folder):
    """The one of the page, which the test before has begun, if this worker ran that one."""
    if not (folder / "runs/cut").exists():
        ended(begin(commands("Replicate the model")[-1][0], "--steps", "4"))
    for line, steps_then in zip(commands("When a process stops"), (6, 8), strict=True):
        words = "Continuing from step"
        output, _ = ended(begin(line[0], "--steps", str(steps_then)))
        assert f"{words} {steps_then - 2}." in output
        assert steps(folder / "runs/cut") == list(range(1, steps_then + 1))


def test_as_many_processes_as_there_are_gpus(begin, folder):
    ((line, _),) = commands("The GPUs of one machine")
    line = line.replace("--nproc-per-node gpu", "--nproc-per-node 2")
    output, errors = ended(begin(line, *SMALL, "--no-compile"))
    assert "processes  2, each with" in output
    assert errors == ""


def test_two_machines_train_one_model(begin, folder):
    ((line, _),) = commands("Two machines")
    line = line.replace("node1:29400", f"localhost:{free_port()}")
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 1")
    machines = [begin(line, *SMALL) for _ in range(2)]
    said = sorted(ended(machine)[0] for machine in machines)
    assert said[0] == ""
    assert "processes  2, each with" in said[1]
    assert steps(folder / "runs/machines") == [1, 2, 3, 4]


def test_a_job_of_slurm_trains_and_the_same_line_goes_on(begin, folder, tmp_path):
    ((name, script),) = re.findall(r"^This is `(.*)`:\n\n```bash\n(.*?)^```$", PAGE, re.M | re.S)
    (folder / name).write_text(script)
    for program, content in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / program).write_text(content)
        (tmp_path / program).chmod(0o755)
    ((line, _),) = commands("Slurm")
    path = f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nodes[1-2]", "SLURM_GPUS_ON_NODE": "1",
           "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": str(free_port())}  # fmt: skip
    for total in (4, 6):
        command = line.replace("sbatch ", "bash ")
        output, _ = ended(begin(command, *SMALL, "--steps", str(total), **job, PATH=path))
        assert "processes  2, each with" in output
        assert steps(folder / "runs/cluster") == list(range(1, total + 1))
    assert "Continuing from step 4." in output
