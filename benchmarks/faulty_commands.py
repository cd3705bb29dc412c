"""Faults in the use of the command, for `faults.py`: closed outputs, impossible values, …"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heedful.train.run_directory import lock_run

SETTINGS = (  # each must be refused in one line, before any file is written
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
    """Run the command; return its exit status and standard error."""
    program = [sys.executable, "-c", "from heedful.cli import main; main()", *map(str, words)]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


SMALL = (
    *("--context-length", "16", "--width", "24", "--layers", "2", "--heads", "2", "--batch", "3"),
    *("--tokenizer", "characters", "--device", "cpu", "--steps", "1000000"),
    *("--save-every", "1000000", "--evaluate-every", "20"),
)


def closed_outputs(place: Path, text: Path) -> Iterator[str]:
    """Close the pipe of standard output, fill its disk, or close the terminal."""
    for name in ("pipe", "hangup", "full"):
        directory = place / name
        program = [sys.executable, "-c", "from heedful.cli import main; main()", "train", text]
        output = open("/dev/full", "w") if name == "full" else subprocess.PIPE  # noqa: SIM115
        process = subprocess.Popen(
            [*program, "--out", directory, *SMALL],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_receive_hangups,
        )
        if process.stdout:
            while "step 40" not in (line := process.stdout.readline()) and line:
                pass
            if name == "hangup":
                process.send_signal(signal.SIGHUP)
                output_text = process.stdout.read()
            else:
                process.stdout.close()
        error = process.stderr.read() if process.stderr else ""
        process.wait()
        message = output_text if name == "hangup" else error
        is_saved = (directory / "state/last.safetensors").is_file() or name == "full"
        yield "clear" if is_saved and "--resume" in message else "lost"


def _receive_hangups() -> None:
    """Restore the default action of SIGHUP, because `nohup` makes processes ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def refused_settings(place: Path, text: Path) -> Iterator[str]:
    """Pass impossible or invalid values; the command must print one line and make no directory."""
    for option, value in SETTINGS:
        out = place / "none"
        status, error = command("train", text, "--out", out, option, value)
        is_line = status in (1, 2) and error.count("\n") == 1 and "unexpected" not in error
        yield "clear" if is_line and not out.exists() else "lost"
        shutil.rmtree(out, ignore_errors=True)


def refused_second(place: Path, old: Path) -> Iterator[str]:
    """Run `--resume` with other settings while another process trains."""
    directory = place / "second"
    shutil.copytree(old, directory)
    stored = (directory / "state/recipe.json").read_bytes()
    with lock_run(directory):
        status, error = command("train", "--out", directory, "--resume", "--learning-rate", "0.5")
    is_unchanged = (directory / "state/recipe.json").read_bytes() == stored
    yield "clear" if is_unchanged and status == 1 and "another process" in error else "silent"
