"""Helpers for tests of commands: train a run, and check errors and wrong usage."""

import shlex

from heedful.cli.main import run


def train(folder, text, *options):
    """Write a text into a folder, train on it, and return the directory of the run."""
    (folder / "text.txt").write_text(text, "utf-8")
    source, out = str(folder / "text.txt"), folder / "run"
    assert run(["train", source, "--out", str(out), *options]) == 0
    return out


def refused(result, *words):
    """Check for one line on standard error that has these words, and status 1."""
    status, _, error = result
    assert status == 1
    assert error.startswith("heedful: ")
    assert error.count("\n") == 1
    assert not error.startswith("heedful: unexpected")
    for word in words:
        assert word in error


def misused(result, *words):
    """Check for one line on standard error that has these words, and status 2."""
    status, output, error = result
    assert (status, output, error.count("\n")) == (2, "", 1)
    assert error.startswith("heedful")
    for word in words:
        assert word in error


def arguments_of(line):
    """Return the arguments of a suggested command."""
    words = shlex.split(line)
    return words[words.index("heedful") + 1 :]
