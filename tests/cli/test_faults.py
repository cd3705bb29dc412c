"""What a person does to a run by accident: it is saved, and said, in one line."""

import os
import signal

import pytest
from typed import refused, train

from heedful.files import load_tensors
from heedful.train import Training, read_metrics
from heedful.train.run_directory import owning
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
def kept(tmp_path_factory):
    """A short run, not to be changed."""
    return train(tmp_path_factory.mktemp("kept"), TEXT, *SMALL, "--steps", "2")


def test_a_refused_second_resume_changes_nothing_of_the_first(kept, said):
    files = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    with owning(kept):
        second = said("train", "--out", kept, "--resume", "--learning-rate", "0.5")
    refused(second, "being written by another process")
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == files


REFUSED = {
    "--optimizer adamw": "optimizer",
    "--initial normal": "initial",
    "--width 25 --heads 5": "width = 25, heads = 5",
    "--convolution 16": "convolution",
    f"--batch {10**12}": "takes about",
    "--device cuda:99": "cuda:99",
}


@pytest.mark.parametrize("option", REFUSED)
def test_what_a_resumed_run_cannot_do_is_refused_and_not_kept(option, kept, said):
    recipe = kept / "state/recipe.json"
    before = recipe.read_bytes()
    refused(said("train", "--out", kept, "--resume", *option.split()), REFUSED[option])
    assert recipe.read_bytes() == before


class Ended:
    """An output that has ended after some lines."""

    def __init__(self, lines, error):
        self.left, self.error = lines, error

    def write(self, text):
        self.left -= text.count("\n")
        if self.left < 0:
            raise self.error
        return len(text)

    def flush(self):
        return


PIPE, FULL = BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")


@pytest.mark.parametrize(("lines", "error"), [(0, FULL), (14, PIPE), (14, FULL)])
def test_an_output_that_has_ended_saves_and_says_so(
    lines, error, text, said, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    screen = terminal._Console(file=Ended(lines, error), width=200)
    monkeypatch.setattr(terminal, "console", lambda: screen)
    result = said("train", text, "--out", out, *SMALL, "--steps", "90")
    refused(result, "standard output cannot be written", f"train --out {out} --resume")
    if not lines:
        return
    step = load_tensors(out / "state/last.safetensors")[1]["step"]
    assert 0 < step < 90
    assert f"saved at step {step}:" in result[2]
    monkeypatch.undo()
    assert said("train", "--out", out, "--resume", "--steps", step + 1)[0] == 0


def signalled(monkeypatch, number, times, at):
    """A signal that arrives during a step; of a terminal that closes a shell tells once more."""
    step = Training._step

    def stepped(self, metrics):
        if self.progress.step == at:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return step(self, metrics)

    monkeypatch.setattr(Training, "_step", stepped)


@pytest.mark.parametrize(("number", "times"), [(signal.SIGHUP, 2), (signal.SIGINT, 1)])
def test_a_signal_saves_and_the_run_goes_on(number, times, text, said, tmp_path, monkeypatch):
    out = tmp_path / "run"
    signalled(monkeypatch, number, times, at=7)
    status, output, _ = said("train", text, "--out", out, *SMALL, "--steps", "20")
    assert status == 130
    assert "Stopped and saved at step 8" in output
    assert f" train --out {out} --resume" in output
    assert said("train", "--out", out, "--resume", "--steps", "10")[0] == 0
    steps = [line["step"] for line in read_metrics(out / "metrics.jsonl") if "loss" in line]
    assert steps == list(range(1, 11))


def test_a_run_that_is_to_outlive_its_terminal_does(text, said, tmp_path, monkeypatch):
    signalled(monkeypatch, signal.SIGHUP, 2, at=7)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert said("train", text, "--out", tmp_path / "r", *SMALL, "--steps", "9")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)
