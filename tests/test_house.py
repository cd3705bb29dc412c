"""The rules of the house: floors, public names, what an import brings, one line an error."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from heedful import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "heedful"
FLOORS = {
    "errors": 0,
    "files": 0,
    "configuration": 0,
    "ops": 1,
    "layers": 2,
    "models": 3,
    "text": 3,
    "recorder": 3,
    "generate": 4,
    "translate": 4,
    "fill": 4,
    "train": 4,
    "explain": 4,
    "views": 5,
    "cli": 6,
}


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path):
    """The rooms of heedful that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module]
            if node.module == "heedful":
                names = [f"heedful.{alias.name}" for alias in node.names]
        for name in names:
            if name == "heedful":
                yield "heedful"
            elif name.startswith("heedful."):
                yield name.split(".")[1]


def modules():
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_go_down(path):
    here = room(path)
    assert here in FLOORS, f"{here} has no floor: add it to FLOORS"
    for there in imported_rooms(path):
        if there == "heedful":
            assert here == "cli", "only the command imports the public face"
        elif there != here:
            assert FLOORS[there] < FLOORS[here] or FLOORS[here] == FLOORS[there] == 0, (
                f"{here} (floor {FLOORS[here]}) imports {there} (floor {FLOORS[there]})"
            )


def test_contributing_shows_the_floors_as_they_are():
    table = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    shown = {
        name.removesuffix("/").removesuffix(".py"): int(floor)
        for floor, rooms in table
        for name in re.findall(r"`(.*?)`", rooms)
    }
    assert shown == FLOORS


def test_a_floor_that_is_broken_would_be_seen(tmp_path):
    path = tmp_path / "masks.py"
    path.write_text(
        "def f():\n    from heedful.models import GPT\n    import heedful.views.plots\n"
    )
    assert list(imported_rooms(path)) == ["models", "views"]


def test_public_names():
    assert set(heedful.__all__) == {
        "__version__",
        "attention",
        "errors",
        "load",
        "load_model",
        "masks",
        "positions",
        "record",
        "steps",
        "streaming_attention",
    }
    assert all(hasattr(heedful, name) for name in heedful.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        heedful.atention  # noqa: B018


FORBIDDEN = ("matplotlib", "starlette", "uvicorn", "huggingface_hub", "transformers", "tokenizers",
             "tiktoken", "rich", "click", "requests", "IPython")  # fmt: skip


def test_an_import_brings_no_pictures_web_or_hub_and_little_time():
    """In a fresh process. What the import costs is measured against its limit, not compared."""
    program = (
        "import sys, time, torch\n"
        "began = time.process_time()\n"
        "import heedful\n"
        "took = time.process_time() - began\n"
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules], took < 0.3)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[] True"


def test_help_needs_no_torch():
    program = (
        "import sys\n"
        "from heedful.cli.main import run\n"
        "run(['--help'])\n"
        "print('torch' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert output.stdout.splitlines()[-1] == "False"


def test_every_error_is_one_line_and_one_of_ours():
    error = errors.TextError("a\nb", expected="c", cause="d", remedy="e")
    assert str(error) == "a b; expected c; likely cause: d; e"
    assert isinstance(error, errors.HeedfulError)
    assert isinstance(error, ValueError)
    assert isinstance(errors.SaveError("full"), OSError)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert all(issubclass(kind, errors.HeedfulError) for kind in kinds)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_say_what_they_are_and_raise_instead_of_asserting(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree)
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))


def test_no_pickle_and_no_stub():
    """torch.load stands where a user allows it, and then takes tensors alone."""
    unwanted = (
        r"(?<!allow-)\bpickle\b|torch\.load(?!\([^)]*weights_only=True)|torch\.save|TODO|FIXME"
    )
    for path in modules():
        assert not re.search(unwanted, path.read_text("utf-8")), path
