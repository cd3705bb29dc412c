"""Fixtures that run commands as a user types them."""

import pytest
from command_checks import train

from heedful.cli.main import run
from heedful.pictures import head_grid


@pytest.fixture
def cli(capsys):
    """Run a command; return its exit status, standard output and standard error."""

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def night(tmp_path_factory):
    """A training run of a GPT: 2 layers of 3 heads, a context of 32 tokens. Do not change it."""
    sizes = ["--context-length", "32", "--width", "24", "--layers", "2", "--heads", "3"]
    rest = ["--steps", "2", "--batch", "2", "--device", "cpu", "--vocabulary", "300"]
    text = "night and day, day and night. " * 60
    return train(tmp_path_factory.mktemp("night"), text, *sizes, *rest)


@pytest.fixture
def drawn(monkeypatch):
    """The blocks of maps and the style options of every picture of heads."""
    pictures, draw = [], head_grid.draw

    def draw_and_store(blocks, **look):
        pictures.append((blocks, look))
        return draw(blocks, **look)

    monkeypatch.setattr(head_grid, "draw", draw_and_store)
    return pictures
