"""A compiled training pass: the numbers of the plain pass, also after a kill and --resume."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from heedful.files import load_tensors
from heedful.train import read_metrics

TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(120))
SMALL = ["--context-length", "32", "--width", "32", "--layers", "2", "--heads", "2", "--dropout",
         "0.1", "--batch", "12", "--tokenizer", "characters", "--device", "cpu", "--steps", "24",
         "--evaluate-every", "6", "--save-every", "4", "--compile"]  # fmt: skip
COMMAND = "from heedful.cli import main; main()"
KILLED = """
import os, signal, sys
from heedful.train import loop
take = loop.Training._step
def step(self, metrics):
    if self.progress.step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(self, metrics)
loop.Training._step = step
"""


def python(code, *arguments, status=0):
    """Run code in a new process with two threads; return its output, and check standard error.

    The tests' checks of shapes cannot be compiled. With CI set, torch's compiler is stricter.
    """
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "CI": "1"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (process.returncode, process.stderr) == (status, "")
    return process.stdout


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(optimizer, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    train = ["train", tmp_path / "text.txt", *SMALL, "--optimizer", optimizer, "--out"]
    python(COMMAND, *train, tmp_path / "whole")
    python(KILLED + COMMAND, *train, tmp_path / "killed", status=-signal.SIGKILL)
    python(COMMAND, "train", "--out", tmp_path / "killed", "--resume")
    plain, killed = (outcome(tmp_path / name) for name in ("whole", "killed"))
    for line, other in zip(plain[0], killed[0], strict=True):
        assert line == pytest.approx(other, rel=3e-3)  # two whole compiled runs differ by 1e-3
    torch.testing.assert_close(plain[1], killed[1], rtol=1e-2, atol=2e-3)


def outcome(directory):
    """Return the lines of the metrics, and the weights of the last checkpoint."""
    tensors, _ = load_tensors(directory / "state/last.safetensors")
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    return read_metrics(directory / "metrics.jsonl"), weights


COMPARISON = """
import torch
from heedful.errors import ArgumentError
from heedful.models import GPT, GPTConfig, loss
from heedful.train.compiled_pass import compile_loss
from heedful.train.tasks import Windows

def plain(model, batch, smoothing):
    return loss(model(batch.inputs).logits, batch.targets, smoothing)

torch.manual_seed(0)
model = GPT(GPTConfig(vocabulary=13, context_length=12, width=24, heads=3, layers=2))
run = compile_loss(plain)
for size in ((5, 12), (3, 7), (5, 12)):
    batch = Windows(torch.randint(0, 13, size), torch.randint(0, 13, size))
    results = []
    for function in (plain, run):
        model.zero_grad()
        value = function(model, batch, 0.0)
        value.backward()
        results.append([value.detach(), *(part.grad.clone() for part in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
try:
    run(model, Windows(torch.tensor([[0, 13]]), torch.tensor([[1, 2]])), 0.0)
except ArgumentError as error:
    assert "ids from 0 to 13" in str(error)
    print("refused")
"""


def test_loss_and_gradients_are_those_of_the_plain_pass():
    assert python(COMPARISON) == "refused\n"


ONE_GRAPH = """
import torch, heedful
attend = lambda query, key: heedful.attention(query, key, key, causal=True)
inputs = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 40, 4)
compiled = torch.compile(attend, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(*inputs), attend(*inputs))
"""


def test_compiled_attention_is_one_graph():
    python(ONE_GRAPH)
