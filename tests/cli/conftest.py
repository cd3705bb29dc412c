"""Commands as a person types them."""

import pytest

from heedful.cli.main import run
from heedful.pictures import layers


@pytest.fixture
def said(capsys):
    """Run a command; its exit status, standard output and standard error."""

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def drawn(monkeypatch):
    """The blocks of maps of every picture of heads, and how it was asked to look."""
    kept, draw = [], layers.draw

    def keep(blocks, **look):
        kept.append((blocks, look))
        return draw(blocks, **look)

    monkeypatch.setattr(layers, "draw", keep)
    return kept
