"""The walk's modules, run by node."""

from pathlib import Path

import pytest
from node import returned

from heedful.views import walk

PAGE = Path(walk.__file__).parent / "page"
WIRE = PAGE.parents[1] / "explorer" / "page" / "wire.js"


@pytest.fixture
def computed(tmp_path):
    """What a line of JavaScript returns, of the names of some modules and of what is `asked`."""

    def call(names, line, asked=None, data=b""):
        modules = {"wire": WIRE, **{name: PAGE / f"{name}.js" for name in names}}
        return returned(tmp_path, modules, line, asked, data)

    return call
