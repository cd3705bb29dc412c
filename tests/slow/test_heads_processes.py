"""`heedful heads --texts` under torchrun: equal numbers, and all processes end if one fails."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_checks import train

from heedful.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "corpus.md"
SMALL = ["--context-length", "32", "--width", "24", "--layers", "2", "--heads", "3",
         "--steps", "2", "--batch", "2", "--device", "cpu", "--vocabulary", "300"]  # fmt: skip
TIME_LIMIT = 90  # seconds until all processes have ended


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    text = "night and day, day and night. " * 60
    return train(tmp_path_factory.mktemp("processes"), text, *SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts of very different lengths, in folders."""
    texts, rng = tmp_path_factory.mktemp("texts"), random.Random(1)
    for number, count in enumerate((2, 900, 30, 31, 5, 400, 77)):
        path = texts / f"part{number % 2}" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(" ".join(rng.choices(["night", "day", "and", "or"], k=count)))
    return texts


def torchrun(processes):
    """Return the command that starts so many processes, on a free port."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(processes), "-m", "heedful"]  # fmt: skip


def completed(begin, *arguments):
    """Run a command in a new process; return the completed process."""
    words = [*begin, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def test_one_two_and_three_processes_print_the_same_numbers_once(trained, folder):
    arguments = ["heads", trained, "--texts", folder, "--json"]
    alone = completed([sys.executable, "-m", "heedful"], *arguments)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert json.loads(alone.stdout)["texts"] == 7
    for processes in (1, 2, 3):
        shared = completed(torchrun(processes), *arguments)
        assert shared.returncode == 0, shared.stderr
        assert shared.stdout == alone.stdout


def test_two_processes_share_an_ablation(trained, folder, tmp_path):
    arguments = ["ablate", trained, "--texts", folder, "--include", "[0-4].txt", "--json"]
    alone = completed([sys.executable, "-m", "heedful"], *arguments)
    assert (alone.returncode, alone.stderr) == (0, "")
    shared = completed(torchrun(2), *arguments, "--out", tmp_path / "a.json")
    assert shared.returncode == 0, shared.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.png"}
    first, second = (json.loads(result.stdout) for result in (alone, shared))
    for name in ("delta", "error"):
        numbers = [[head.pop(name) for head in result["heads"]] for result in (first, second)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
    assert first.pop("plain") == pytest.approx(second.pop("plain"), abs=1e-6)
    assert first == second


def test_empty_texts_are_reported_once_by_any_process(trained, folder, tmp_path):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).touch()
    more = ["--texts", tmp_path, "--texts", folder, "--json"]
    shared = completed(torchrun(2), "heads", trained, *more)
    assert shared.returncode == 1
    assert len(json.loads(shared.stdout)["left_out"]) == 3
    assert shared.stderr.count("left out: ") == 3


def test_an_error_of_all_processes_is_reported_and_all_end(trained, folder):
    shared = completed(torchrun(2), "heads", trained, "--texts", folder, "--context-length", 99)
    assert shared.returncode == 1
    assert shared.stdout == ""
    assert "heedful: contexts of 99 tokens; expected at most 32" in shared.stderr


def children(process):
    """Return the ids of the processes that a process has started."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def is_worker(pid):
    return b"heads" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@pytest.mark.parametrize("after", [0.0, 10.0])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_others(after, rank, trained, tmp_path):
    """At the start, while the processes connect or read texts, and while they work."""
    (tmp_path / "a.txt").write_text("night and day and " * 60_000)
    (tmp_path / "b.txt").write_text("day or night and " * 60_000)
    command = [*torchrun(2), "heads", str(trained), "--texts", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not (workers := [pid for pid in children(process) if is_worker(pid)])[1:]:
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(after)
        os.kill(workers[rank], signal.SIGKILL)
        output, error = process.communicate(timeout=TIME_LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode != 0
    assert output == ""
    cause = error[error.index("Root Cause") :]  # the list that torchrun prints
    assert f"rank      : {rank} " in cause
    assert "SIGKILL" in cause


HANGS = """
import os, signal, sys
import heedful
from heedful.loaded import survey
from heedful.torchrun import started
from heedful.recording import HeadTotals

class Stopping(HeadTotals):
    def add(self, *arguments):
        super().add(*arguments)
        if started().rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

survey(heedful.open(sys.argv[1]), [sys.argv[2]], Stopping, processes=started(), timeout=4)
"""


def test_a_process_that_hangs_is_reported_with_its_rank(trained, folder, tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    begin = [*torchrun(2)[:-2], tmp_path / "hangs.py"]
    process = completed(begin, trained, folder)
    assert process.returncode != 0
    assert "no answer from process 1 of 2 in 4 s" in process.stderr


def test_the_command_of_the_page_prints_the_numbers_of_one_process(
    trained, folder, tmp_path, monkeypatch
):
    [line] = re.findall(r"^torchrun .*$", PAGE.read_text("utf-8"), re.MULTILINE)
    words = shlex.split(line)
    assert words[0] == "torchrun"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "book").symlink_to(trained)
    (tmp_path / "nights").symlink_to(folder)
    shared = completed([sys.executable, "-m", "torch.distributed.run"], *words[1:])
    assert shared.returncode == 0, shared.stderr
    command = words[words.index("heedful") + 1 :]
    alone = completed([sys.executable, "-m", "heedful"], *command)
    assert shared.stdout == alone.stdout
    assert run(command) == 0
