"""Accidents during training: the run is saved, and the error is one line."""

import os
import signal

import pytest
from command_checks import refused, train

from heedful.files import load_tensors
from heedful.train import Training, read_metrics
from heedful.train.run_directory import lock_run
from heedful.views import terminal

TEXT = "".join(f"Bottle {i} of {i * i} on the wall.\n" for i in range(100))
SMALL = ["--context-length", "16", "--width", "24", "--layers", "1", "--heads", "2", "--batch", "3",
         "--tokenizer", "characters", "--device", "cpu", "--evaluate-every", "50"]  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short training run. Do not change it."""
    return train(tmp_path_factory.mktemp("trained"), TEXT, *SMALL, "--steps", "2")


def test_a_second_process_cannot_resume_a_run(trained, cli):
    files = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    with lock_run(trained):
        second = cli("train", "--out", trained, "--resume", "--learning-rate", "0.5")
    refused(second, "being written by another process")
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == files


REFUSED = {
    "--optimizer adamw": "optimizer",
    "--initial normal": "initial",
    "--width 25 --heads 5": "width = 25, heads = 5",
    "--convolution 16": "convolution",
    f"--batch {10**12}": "needs about",
    "--device cuda:99": "cuda:99",
}


@pytest.mark.parametrize("option", REFUSED)
def test_a_refused_setting_is_not_stored_on_resume(option, trained, cli):
    recipe = trained / "state/recipe.json"
    before = recipe.read_bytes()
    refused(cli("train", "--out", trained, "--resume", *option.split()), REFUSED[option])
    assert recipe.read_bytes() == before


class LostOutput:
    """An output that raises an error after some lines."""

    def __init__(self, lines, error):
        self.lines, self.error = lines, error

    def write(self, text):
        self.lines -= text.count("\n")
        if self.lines < 0:
            raise self.error
        return len(text)

    def flush(self):
        return


PIPE, FULL = BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")


@pytest.mark.parametrize(("lines", "error"), [(0, FULL), (14, PIPE), (14, FULL)])
def test_a_lost_output_saves_the_run(lines, error, text, cli, tmp_path, monkeypatch):
    out = tmp_path / "run"
    screen = terminal._Console(file=LostOutput(lines, error), width=200)
    monkeypatch.setattr(terminal, "console", lambda: screen)
    result = cli("train", text, "--out", out, *SMALL, "--steps", "90")
    refused(result, "standard output cannot be written", f"train --out {out} --resume")
    if not lines:
        return
    step = load_tensors(out / "state/last.safetensors")[1]["step"]
    assert 0 < step < 90
    assert f"saved at step {step}:" in result[2]
    monkeypatch.undo()
    assert cli("train", "--out", out, "--resume", "--steps", step + 1)[0] == 0


def send_signal(monkeypatch, number, times, step_index):
    """Send a signal `times` times during a step."""
    step = Training._step

    def stepped(self, metrics):
        if self.progress.step == step_index:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return step(self, metrics)

    monkeypatch.setattr(Training, "_step", stepped)


@pytest.mark.parametrize(("number", "times"), [(signal.SIGHUP, 2), (signal.SIGINT, 1)])
def test_a_signal_saves_a_run_that_can_resume(number, times, text, cli, tmp_path, monkeypatch):
    out = tmp_path / "run"
    send_signal(monkeypatch, number, times, step_index=7)
    status, output, _ = cli("train", text, "--out", out, *SMALL, "--steps", "20")
    assert status == 130
    assert "Stopped and saved at step 8" in output
    assert f" train --out {out} --resume" in output
    assert cli("train", "--out", out, "--resume", "--steps", "10")[0] == 0
    steps = [line["step"] for line in read_metrics(out / "metrics.jsonl") if "loss" in line]
    assert steps == list(range(1, 11))


def test_nohup_ignores_a_closed_terminal(text, cli, tmp_path, monkeypatch):
    send_signal(monkeypatch, signal.SIGHUP, 2, step_index=7)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert cli("train", text, "--out", tmp_path / "r", *SMALL, "--steps", "9")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)
