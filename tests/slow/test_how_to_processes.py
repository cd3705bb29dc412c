"""The commands of docs/how-to/processes.md, run on one machine.

Two processes on the CPU replace the GPUs, this machine replaces `node1` and `node2`, and shell
scripts replace Slurm: `srun` starts its command once per node.
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
    """Return the commands of a section of the page, each with the lines of its printed output."""
    part = PAGE.split(f"\n## {heading}")[1].split("\n## ")[0]
    blocks = "".join(re.findall(r"^```(?:sh|console)\n(.*?)^```$", part, re.M | re.S))
    pairs = []
    for line in re.sub(r"\\\n +", "", blocks).splitlines():
        if re.match(r"\$ |torchrun |heedful |sbatch ", line):
            pairs.append((line.removeprefix("$ "), []))
        elif pairs:
            pairs[-1][1].append(line)
    return pairs


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("processes")
    (place / "book.txt").write_text(TEXT)
    return place


@pytest.fixture
def begin(folder):
    """Start a command of the page with further options; return the process."""

    def call(line, *more, **variables):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        fixed = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80", "PATH": path}
        return subprocess.Popen(
            [*shlex.split(line), *more], cwd=folder, env={**os.environ, **fixed, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return call


def printed(process):
    """Wait for a process to succeed; return its standard output and error."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output, errors


def steps(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "loss" in line]


@pytest.mark.parametrize("heading", ["Two processes on this machine", "Replicate the model"])
def test_two_processes_print_the_lines_of_the_page(heading, begin, folder):
    """Except losses, speed and the dtype of products: only four steps run, on any machine."""
    (line, expected) = commands(heading)[-1]
    output, errors = printed(begin(line, "--steps", "4"))
    assert errors == ""
    lines = output.splitlines()
    products = str(choose_matmul_dtype("auto", torch.device("cpu"))).removeprefix("torch.")
    for text in expected:
        text = text.replace("products in bfloat16", f"products in {products}")
        assert text in lines or re.match(r"…|step 100", text), f"{text!r} is not in\n{output}"
    assert "step 4/4  " in output
    assert re.search(r'^Next:\n  heedful generate runs/\w+ ".*"$', output, re.M)


def test_a_sharded_run_resumes_in_three_processes_and_in_one(begin, folder):
    """The run of the page; the previous test has started it if it ran in this worker."""
    if not (folder / "runs/cut").exists():
        printed(begin(commands("Replicate the model")[-1][0], "--steps", "4"))
    for line, total in zip(commands("When a process stops"), (6, 8), strict=True):
        output, _ = printed(begin(line[0], "--steps", str(total)))
        assert f"Continuing from step {total - 2}." in output
        assert steps(folder / "runs/cut") == list(range(1, total + 1))


def test_the_command_for_the_gpus_of_one_machine(begin, folder):
    ((line, _),) = commands("The GPUs of one machine")
    line = line.replace("--nproc-per-node gpu", "--nproc-per-node 2")
    output, errors = printed(begin(line, *SMALL, "--no-compile"))
    assert "processes  2, each with" in output
    assert errors == ""


def test_two_machines_train_one_model(begin, folder):
    ((line, _),) = commands("Two machines")
    line = line.replace("node1:29400", f"localhost:{free_port()}")
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 1")
    machines = [begin(line, *SMALL) for _ in range(2)]
    outputs = sorted(printed(machine)[0] for machine in machines)
    assert outputs[0] == ""
    assert "processes  2, each with" in outputs[1]
    assert steps(folder / "runs/machines") == [1, 2, 3, 4]


def test_a_slurm_job_trains_and_the_same_command_resumes_it(begin, folder, tmp_path):
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
        output, _ = printed(begin(command, *SMALL, "--steps", str(total), **job, PATH=path))
        assert "processes  2, each with" in output
        assert steps(folder / "runs/cluster") == list(range(1, total + 1))
    assert "Continuing from step 4." in output
