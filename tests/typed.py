"""What tests of commands share: a run that was trained, and a refusal in one line."""

import shlex

from heedful.cli.main import run


def train(folder, text, *options):
    """Train on a text that is written into a folder; the directory of the run, beside it."""
    (folder / "text.txt").write_text(text, "utf-8")
    source, out = str(folder / "text.txt"), folder / "run"
    assert run(["train", source, "--out", str(out), *options]) == 0
    return out


def refused(result, *words):
    """One clear line on standard error, and status 1."""
    status, _, error = result
    assert status == 1
    assert error.startswith("heedful: ")
    assert error.count("\n") == 1
    assert not error.startswith("heedful: unexpected")
    for word in words:
        assert word in error


def misused(result, *words):
    """Wrong usage: one line on standard error that names the option, and status 2."""
    status, output, error = result
    assert (status, output, error.count("\n")) == (2, "", 1)
    assert error.startswith("heedful")
    for word in words:
        assert word in error


def arguments_of(line):
    """What follows the program in a command that is suggested."""
    words = shlex.split(line)
    return words[words.index("heedful") + 1 :]
