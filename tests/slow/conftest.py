"""A browser that reaches nothing but this machine, and servers of Jupyter, each once."""

import pytest
from browsed import started


@pytest.fixture(scope="session")
def browser():
    with started() as found:
        yield found
