"""Names and tokens of others change nothing in a terminal, and suggested commands work."""

import io
import json
import os
import re
import shlex
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
import small_recordings
import torch

from heedful.cli.main import main
from heedful.cli.proofs import print_missed
from heedful.cli.suggested_commands import program, suggestion
from heedful.files import save_tensors
from heedful.recording import load
from heedful.recording.proof import Layout

NAME = "a\x1bc\x7f\x9b1mb [/c] :cat:"  # ESC c resets a terminal
SHOWN = "a␛c\ufffd\ufffd1mb [/c] :cat:"


def has_controls(text):
    return any(char != "\n" and unicodedata.category(char) == "Cc" for char in text)


@pytest.fixture
def foreign(tmp_path):
    """A recording with control characters and rich's markup in names of modules and tokens."""
    recording = small_recordings.of_gpt(text="abc")
    recording.tokens = [[NAME, "b", "c"]]
    for capture in recording._captures:
        capture.layout = Layout("guessed", NAME)
    recording.missed[NAME] = NAME
    return recording.save(tmp_path / "r.safetensors")


def test_errors_have_no_control_characters(cli, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [NAME], "model_type": NAME}))
    save_tensors(tmp_path / "model.safetensors", {"a": torch.zeros(1)}, {})
    for arguments in (
        ["export", tmp_path, "--to", tmp_path / "o"],
        ["plot", tmp_path / NAME, "text"],
        ["train", tmp_path / NAME, "--out", tmp_path / "o"],
        ["plot", tmp_path, f"--{NAME}"],
        [NAME],
    ):
        status, output, errors = cli(*arguments)
        assert status, arguments
        assert "a␛c" in errors or r"a\x1bc" in errors, arguments
        assert not has_controls(output + errors), arguments


def test_tables_and_notes_have_no_control_characters(cli, foreign, capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [NAME]}))
    save_tensors(tmp_path / "model.safetensors", {"a": torch.zeros(1)}, {})
    status, output, _ = cli("describe", tmp_path)
    assert (status, output.count(SHOWN[1:])) == (0, 2)
    assert not has_controls(output)
    status, output, errors = cli("heads", foreign)
    assert status == 0, errors
    assert SHOWN in output
    assert not has_controls(output + errors)
    print_missed(load(foreign), is_verified=False)
    errors = capsys.readouterr().err
    assert SHOWN in errors
    assert not has_controls(errors)


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Run a command whose standard output is a terminal; return what the terminal receives."""

    def call(*arguments):
        target = Screen()
        monkeypatch.setattr(sys, "stdout", target)
        monkeypatch.setenv("TERM", "xterm-256color")
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert ended.value.code == 0
        return target.getvalue()

    return call


def test_only_colours_reach_a_terminal(screen, foreign, night):
    text = screen("generate", night, NAME, "--tokens", "1")
    assert text.startswith(SHOWN)
    assert not has_controls(text)
    table = screen("heads", foreign)
    assert SHOWN in table
    without_colours = re.sub(r"\x1b\[\d+m", "", table)
    assert len(without_colours) < len(table)
    assert not has_controls(without_colours)


def test_text_in_a_pipe_is_unchanged(cli, night):
    status, output, _ = cli("generate", night, NAME, "--tokens", "1")
    assert status == 0
    assert output.startswith(NAME)


@pytest.mark.parametrize("name", ["-dash", "--out", "a b", "it's $HOME"])
def test_a_suggested_command_accepts_every_name(cli, night, tmp_path, monkeypatch, name):
    shutil.copytree(night, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    words = suggestion("describe", Path(name), "--out", Path("-x.png")).removeprefix(program())
    status, _, errors = cli(*shlex.split(words))
    assert status == 0, errors
    assert os.path.exists("-x.png")
