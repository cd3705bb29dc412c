"""Commands as a person types them."""

import pytest
from typed import train

from heedful.cli.main import run
from heedful.pictures import head_grid


@pytest.fixture
def said(capsys):
    """Run a command; its exit status, standard output and standard error."""

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def night(tmp_path_factory):
    """A GPT of 2 layers of 3 heads that reads 32 tokens; not to be changed."""
    sizes = ["--context-length", "32", "--width", "24", "--layers", "2", "--heads", "3"]
    rest = ["--steps", "2", "--batch", "2", "--device", "cpu", "--vocabulary", "300"]
    text = "night and day, day and night. " * 60
    return train(tmp_path_factory.mktemp("night"), text, *sizes, *rest)


@pytest.fixture
def drawn(monkeypatch):
    """The blocks of maps of every picture of heads, and how it was asked to look."""
    kept, draw = [], head_grid.draw

    def keep(blocks, **look):
        kept.append((blocks, look))
        return draw(blocks, **look)

    monkeypatch.setattr(head_grid, "draw", keep)
    return kept
