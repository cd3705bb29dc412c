"""What `--compile` needs is looked for before any work."""

import pytest
from typed import refused

from heedful.cli.main import run
from heedful.errors import ArgumentError
from heedful.train import compiled

SMALL = ["--context-length", "16", "--width", "8", "--layers", "1", "--heads", "2", "--batch", "2",
         "--tokenizer", "characters", "--device", "cpu", "--steps", "1"]  # fmt: skip


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without a compiler, and with a text."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "text.txt").write_text("some words of a text\n" * 40)
    return tmp_path


def test_without_a_compiler_nothing_is_begun_and_a_run_goes_on_without(bare, capsys):
    command = ["train", str(bare / "text.txt"), "--out", str(bare / "run"), *SMALL]
    assert run([*command, "--compile"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("heedful: --compile without the C++ compiler ")
    assert said.endswith("; install it, or train with --no-compile\n")
    assert not (bare / "run").exists()
    assert run(command) == 0
    again = ["train", "--out", str(bare / "run"), "--resume", "--steps", "2"]
    capsys.readouterr()
    refused((run([*again, "--compile"]), "", capsys.readouterr().err), "the C++ compiler")
    assert run(again) == 0


def test_without_the_header_of_python_its_path_is_said(tmp_path, monkeypatch):
    (tmp_path / "c++").touch(mode=0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setattr(compiled.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ArgumentError, match=r"^--compile without \S+/Python.h, which"):
        compiled.check_compiler("GPT")
    (tmp_path / "Python.h").touch()
    compiled.check_compiler("GPT")
    with pytest.raises(ArgumentError, match="kind BERT; expected a GPT"):
        compiled.check_compiler("BERT")
