"""Settings and fixtures of all tests; shape annotations are checked, except in whole commands."""

import builtins
import io
import os
import signal
from contextlib import contextmanager, nullcontext
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # a mistyped path looks like the name of a model
os.environ["OMP_NUM_THREADS"] = "1"  # the suite runs a process on each core
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in processes that a script starts with &
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jaxtyping
import pytest
import torch
from hypothesis import settings

# no time limits, as benchmarks measure times; new random examples in each run
settings.register_profile("untimed", deadline=None, max_examples=30)
settings.load_profile("untimed")
jaxtyping.install_import_hook(["heedful.ops", "heedful.layers"], "beartype.beartype")

TESTS = Path(__file__).parent
WHOLE = [TESTS / folder for folder in ("cli", "docs", "slow", "train", "views")]
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(20_170_612)


@contextmanager
def _shapes_unchecked():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True, scope="module")
def _skip_checks_in_commands(request):
    """Skip the checks of shapes in whole commands and runs; they would take a fifth longer."""
    is_whole = any(request.path.is_relative_to(folder) for folder in WHOLE)
    with _shapes_unchecked() if is_whole else nullcontext():
        yield


@pytest.fixture
def as_a_user():
    """Skip the checks of shapes, so that heedful's own errors are raised."""
    with _shapes_unchecked():
        yield


@pytest.fixture
def forbid(monkeypatch):
    """Make opening a path, or a file in it, raise PermissionError, for root too."""

    def call(forbidden):
        def opened(path, *arguments, **options):
            if not isinstance(path, int) and Path(path).is_relative_to(forbidden):
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **options)

        original = io.open
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)

    return call


@pytest.fixture
def data():
    """The folder of texts beside the checkout; it is not part of the repository."""
    if not DATA.is_dir():
        pytest.skip("needs the texts in ../shared/data, which are not part of the repository")
    return DATA
