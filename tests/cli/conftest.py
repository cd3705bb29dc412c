"""Commands as a person types them."""

import pytest

from heedful.cli.main import run


@pytest.fixture
def said(capsys):
    """Run a command; its exit status, standard output and standard error."""

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
