"""What a person does to a run by accident, through the command: the rows of `faults.py` on it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiny_runs import recipe, trained

from heedful.train.plan import new_plan
from heedful.train.run import begin
from heedful.train.run_directory import owning

SETTINGS = (  # each is refused by one line, before any work
    ("--width", "1000000000"),
    ("--vocabulary", "1000000000000"),
    ("--layers", "1000000"),
    ("--batch", "1000000000000"),
    ("--steps", "1000000000000000000000000000000"),
    ("--accumulation", "1000000000000"),
    ("--seed", "1000000000000000000000000000000"),
    ("--seed", "-1"),
    ("--learning-rate", "nan"),
    ("--clip", "inf"),
    ("--matrix-rate", "1e400"),
    ("--context-length", "1.5"),
    ("--tokenizer", "another/tokenizer.json"),
    ("--out", ""),
)


def command(*words: Any) -> tuple[int, str]:
    """Run the command; its status and what it says on standard error."""
    program = [sys.executable, "-c", "from heedful.cli import main; main()", *map(str, words)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


SMALL = (
    *("--context-length", "16", "--width", "24", "--layers", "2", "--heads", "2", "--batch", "3"),
    *("--tokenizer", "characters", "--device", "cpu", "--steps", "1000000"),
    *("--save-every", "1000000", "--evaluate-every", "20"),
)


def unheard(place: Path, text: Path) -> Iterator[str]:
    """A pipe that is closed, a full disk behind standard output, a terminal that closes."""
    for name in ("pipe", "hangup", "full"):
        directory = place / name
        program = [sys.executable, "-c", "from heedful.cli import main; main()", "train", text]
        output = open("/dev/full", "w") if name == "full" else subprocess.PIPE  # noqa: SIM115
        process = subprocess.Popen(
            [*program, "--out", directory, *SMALL],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heard,
        )
        if process.stdout:
            while "step 40" not in (line := process.stdout.readline()) and line:
                pass
            if name == "hangup":
                process.send_signal(signal.SIGHUP)
                said = process.stdout.read()
            else:
                process.stdout.close()
        error = process.stderr.read() if process.stderr else ""
        process.wait()
        told = said if name == "hangup" else error
        is_saved = (directory / "state/last.safetensors").is_file() or name == "full"
        yield "clear" if is_saved and "--resume" in told else "lost"


def _heard() -> None:
    """Let a closed terminal be heard, also where `nohup` keeps it from this process."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def refused_settings(place: Path, text: Path) -> Iterator[str]:
    """Values that fit no machine, or nothing at all: one line, and no directory."""
    for option, value in SETTINGS:
        out = place / "none"
        status, error = command("train", text, "--out", out, option, value)
        is_line = status in (1, 2) and error.count("\n") == 1 and "unexpected" not in error
        yield "clear" if is_line and not out.exists() else "lost"
        shutil.rmtree(out, ignore_errors=True)


def changed_texts(place: Path, text: Path) -> Iterator[str]:
    """A text that is another one, or gone, when its run goes on."""
    mine, directory = place / "mine.txt", place / "mine"
    shutil.copy(text, mine)
    trained(new_plan(directory, [str(mine)], recipe()), begin)
    for content in (text.read_text().replace("green", "brown"), None):
        mine.write_text(content) if content else mine.unlink()
        program = [sys.executable, "-c", "from heedful.cli import main; main()", "train"]
        done = subprocess.run(
            [*program, "--out", directory, "--resume"], capture_output=True, text=True, check=True
        )
        yield "clear" if "mine.txt" in done.stdout.partition("text ")[0] else "silent"


def refused_second(place: Path, old: Path) -> Iterator[str]:
    """A second `--resume` with other settings, while the first one trains."""
    directory = place / "second"
    shutil.copytree(old, directory)
    before = (directory / "state/recipe.json").read_bytes()
    with owning(directory):
        status, error = command("train", "--out", directory, "--resume", "--learning-rate", "0.5")
    kept = (directory / "state/recipe.json").read_bytes() == before
    yield "clear" if kept and status == 1 and "another process" in error else "silent"
