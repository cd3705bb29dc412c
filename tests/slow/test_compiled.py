"""A compiled training pass computes what the plain one does, and goes on after a kill."""

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


def made(*arguments, before="", status=0):
    """A command in a process of its own, two threads each.

    CI is set, as on servers that run tests: torch's compiler is stricter there.
    """
    command = [sys.executable, "-c", before + COMMAND, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "CI": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_killed_and_continued_equals_never_stopped(optimizer, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    options = [*SMALL, "--optimizer", optimizer]
    for name in ("whole", "killed"):
        dies = name == "killed"
        done = made(
            "train", tmp_path / "text.txt", "--out", tmp_path / name, *options,
            before=KILLED if dies else "", status=-signal.SIGKILL if dies else 0,
        )  # fmt: skip
        assert not done.stderr
    assert not made("train", "--out", tmp_path / "killed", "--resume").stderr
    whole, killed = (outcome(tmp_path / name) for name in ("whole", "killed"))
    for line, other in zip(whole[0], killed[0], strict=True):
        assert line == pytest.approx(other, rel=1e-4)
    torch.testing.assert_close(whole[1], killed[1], rtol=1e-3, atol=1e-4)


def outcome(directory):
    """The lines of the metrics, and the weights of the checkpoint."""
    tensors, _ = load_tensors(directory / "state/last.safetensors")
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    return read_metrics(directory / "metrics.jsonl"), weights


# In a process of its own: what checks shapes in tests cannot be compiled
COMPARED = """
import torch
from heedful.errors import ArgumentError
from heedful.models import GPT, GPTConfig, loss
from heedful.train.compiled_pass import compiled
from heedful.train.tasks import Windows

def plain(model, batch, smoothing):
    return loss(model(batch.inputs).logits, batch.targets, smoothing)

torch.manual_seed(0)
model = GPT(GPTConfig(vocabulary=13, context_length=12, width=24, heads=3, layers=2))
run = compiled(plain)
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
    done = subprocess.run([sys.executable, "-c", COMPARED], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")


ONE_GRAPH = """
import torch, heedful
attend = lambda query, key: heedful.attention(query, key, key, causal=True)
given = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 40, 4)
compiled = torch.compile(attend, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(*given), attend(*given))
"""


def test_attention_that_is_compiled_is_one_graph():
    """In a process of its own, for what the tests check of types cannot be compiled."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)
