"""The rules of the house: floors, public names, light imports, errors in one line, names."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from heedful import errors, layers
from heedful.cli.main import COMMANDS
from heedful.layers import option_names

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "heedful"
ROOMS = (
    ("errors", "lazy_imports", "rotary_scaling", "files", "configuration", "device", "processes",
     "torchrun", "head_kinds", "token_names"),
    ("ops", "pictures"),
    ("layers", "recording"),
    ("models", "text", "recorder"),
    ("generate", "translate", "fill", "train", "explain", "loaded", "interventions"),
    ("views",),
    ("cli",),
)  # fmt: skip
FLOORS = {name: floor for floor, rooms in enumerate(ROOMS) for name in rooms}
LAZY = ("layers", "models", "train")


def room(path):
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "cli" if first == "__main__" else first


def imported(path):
    """The full name of each import of a module, and whether only type checkers execute it."""
    tree = ast.parse(path.read_text("utf-8"))
    checks = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n)]
    typed = {part for node in checks for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in typed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node in typed) for alias in node.names)


def imported_rooms(path):
    """The rooms that a module imports: top-level modules and packages of heedful."""
    names = [name.split(".") for name, _ in imported(path)]
    return [name[1] if name[1:] else "heedful" for name in names if name[0] == "heedful"]


def modules():
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_go_down(path):
    name = room(path)
    assert name in FLOORS, f"{name} has no floor: add it to FLOORS"
    for other in imported_rooms(path):
        if other == "heedful":
            assert name == "cli", "only the command imports the public names of heedful"
        elif other != name:
            assert FLOORS[other] < FLOORS[name] or FLOORS[name] == FLOORS[other] == 0, (
                f"{name} (floor {FLOORS[name]}) imports {other} (floor {FLOORS[other]})"
            )


# Rooms of the recorder by floors, lowest first; rooms of a floor do not import each other
RECORDER = (
    ("missed_modules", "tracing"),
    ("observed_call", "module_stack"),
    ("doors",),
    ("axes",),
    ("standard_axes", "options"),
    ("finalizing",),
    ("verifying",),
    ("record",),
)
RECORDER_FLOORS = {name: floor for floor, rooms in enumerate(RECORDER) for name in rooms}
IN_RECORDER = sorted((SOURCE / "recorder").rglob("*.py"))


def test_every_room_of_the_recorder_has_a_floor():
    parts = {path.relative_to(SOURCE / "recorder").parts[0] for path in IN_RECORDER}
    assert {part.removesuffix(".py") for part in parts} == {*RECORDER_FLOORS, "__init__"}


@pytest.mark.parametrize("path", IN_RECORDER, ids=lambda path: path.stem)
def test_imports_of_the_recorder_only_go_down(path):
    module = path.relative_to(SOURCE / "recorder").parts[0].removesuffix(".py")
    names = [name.split(".") for name, is_typed in imported(path) if not is_typed]
    for other in (name[2] for name in names if name[:2] == ["heedful", "recorder"]):
        if module not in ("__init__", other):
            assert RECORDER_FLOORS[other] < RECORDER_FLOORS[module], f"{module} imports {other}"


def name_of(path):
    """The full name of a module."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path, known):
    """The modules that a module imports outside its functions, for type checkers too."""
    lines = ast.parse(path.read_text("utf-8")).body
    for node in (n for line in lines for n in (line.body if isinstance(line, ast.If) else [line])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from full & known
            if not full <= known:
                yield node.module


def test_no_two_modules_import_each_other():
    known = {name_of(path) for path in modules()}
    graph = {name_of(path): {*imported_modules(path, known)} & known for path in modules()}
    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {name: rest - leaves for name, rest in graph.items() if name not in leaves}
    assert not graph, f"in a circle: {sorted(graph)}"


def test_public_names():
    assert set(heedful.__all__) == {
        "__version__",
        "ablate",
        "attention",
        "change",
        "errors",
        "intervene",
        "load",
        "load_model",
        "look",
        "masks",
        "open",
        "positions",
        "record",
        "steps",
        "streaming_attention",
    }
    assert all(hasattr(heedful, name) for name in heedful.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        heedful.atention  # noqa: B018


FORBIDDEN = ("matplotlib", "starlette", "uvicorn", "huggingface_hub", "transformers", "tokenizers",
             "tiktoken", "rich", "click", "requests", "IPython", "anywidget")  # fmt: skip


def test_importing_heedful_imports_no_heavy_library():
    program = f"import sys, heedful; print([n for n in {FORBIDDEN!r} if n in sys.modules])"
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


HEAVY = ("torch", "numpy", "matplotlib", "tiktoken", "tokenizers", "transformers", "rich")
# Arguments of each command with a missing path, which is reported before torch is imported
MISSING = {
    "generate": ["none/here", "a"],
    "translate": ["none/here", "a"],
    "fill": ["none/here", "a"],
    "embed": ["none/here"],
    "export": ["none/here", "--to", "none/there"],
    "train": ["none.txt", "--out", "none/there"],
    "tokenize": ["--file", "none.txt"],
    "demo": ["--keep", "--out", "none/there"],
    "plot": ["none/here", "a"],
    "describe": ["none/here"],
    "record": ["none/here", "a", "--out", "none.safetensors"],
    "heads": ["none/here", "a"],
    "ablate": ["none/here", "a"],
    "look": ["none/here", "a"],
    "explain": ["a", "--model", "none/here"],
}


def heavy_modules(*commands):
    """The exit status and the heavy modules after each command, all in a single new process."""
    program = (
        "import contextlib, io, sys\n"
        "from heedful.cli.main import run\n"
        f"for arguments in {commands!r}:\n"
        "    output = io.StringIO()\n"
        "    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):\n"
        "        status = run(list(arguments))\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    print(' '.join(map(str, (status, *heavy))))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return [line.split() for line in output.stdout.splitlines()]


def test_help_and_wrong_usage_import_nothing_heavy():
    helps = [(name, "--help") for name in COMMANDS]
    assert heavy_modules(["--help"], ["--version"], *helps) == [["0"]] * (2 + len(helps))
    wrong = [["fly"], ["train"], ["generate", "a", "--fly"], ["fill", "a", "b", "--count", "x"]]
    assert heavy_modules(*wrong) == [["2"]] * len(wrong)


def test_ctrl_c_while_the_command_is_imported_is_one_line_and_status_130():
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == sys.argv[1]:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from heedful.cli import main\n"
        "main(sys.argv[2:])"
    )
    for module, *arguments in (["click", "--help"], ["heedful.cli.main"], ["torch", "demo"]):
        result = subprocess.run(
            [sys.executable, "-c", program, module, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode, result.stderr.strip()) == (130, "heedful: interrupted")


def test_a_missing_path_is_reported_before_torch_is_imported():
    for status, *heavy in heavy_modules(*([name, *rest] for name, rest in MISSING.items())):
        assert status == "1"
        assert "torch" not in heavy


@pytest.mark.parametrize("name", ["heedful", *(f"heedful.{room}" for room in LAZY)])
def test_a_lazy_package_has_the_names_that_type_checkers_read(name):
    package = importlib.import_module(name)
    [imports] = [
        node
        for node in ast.parse(Path(package.__file__).read_text("utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    homes = {
        alias.asname or alias.name: (line.module, alias.name)
        for line in imports.body
        for alias in line.names
    }
    assert {*homes} == {*package.__all__} - {*vars(package)}  # without names imported eagerly
    for name_here, (module, name_there) in homes.items():
        assert getattr(package, name_here) is getattr(importlib.import_module(module), name_there)
    assert {*homes} <= {*dir(package)}


def test_names_in_configurations_are_names_in_layers():
    assert {*option_names.ACTIVATION_NAMES} == {*layers.ACTIVATIONS}
    assert {*option_names.GATE_NAMES} == {*layers.GATES}
    assert {*option_names.NORM_NAMES} == {*layers.NORMS}
    assert {*option_names.NORM_ORDERS} == {*layers.BLOCKS} == {*layers.DECODER_BLOCKS}


def test_every_error_is_one_line_and_a_heedful_error():
    error = errors.TextError("a\nb", expected="c", cause="d", remedy="e")
    assert str(error) == "a b; expected c; likely cause: d; e"
    assert isinstance(error, errors.HeedfulError)
    assert isinstance(error, ValueError)
    assert isinstance(errors.SaveError("full"), OSError)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert all(issubclass(kind, errors.HeedfulError) for kind in kinds)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_have_docstrings_and_no_assertions(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree)
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))


VAGUE = {"one", "found", "told", "asked", "said"}
BOUND = re.compile(  # in JavaScript: after const, let or catch; parameters of functions
    r"\b(?:const|let)\s+([\w\s,{}\[\]]+?)\s*(?:=|;|\bof\b)|\bcatch \((\w+)\)"
    r"|\(([\w\s,{}\[\]=]*)\)\s*(?:=>|\{)|\b(\w+)\s*=>"
)


def variables(path):
    """Each name that a module or a script binds: variables, parameters and imports; its line."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            for field in ("id", "arg", "name", "asname"):
                if not isinstance(getattr(node, "ctx", node), ast.Load | ast.keyword):
                    yield getattr(node, field, None), getattr(node, "lineno", 0)
        return
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r".", "", m[0]), text, flags=re.DOTALL)
    for match in BOUND.finditer(text):
        for name in re.findall(r"\w+", match[match.lastindex]):
            yield name, text.count("\n", 0, match.start()) + 1


def test_no_variable_has_a_vague_name():
    scripts = [path for path in SOURCE.rglob("*.js") if "vendor" not in path.parts]
    vague = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in sorted([*SOURCE.rglob("*.py"), *scripts])
        for name, line in variables(path)
        if name in VAGUE and (path.name, name) != ("head_survey.py", "found")  # a public field
    ]
    assert not vague, "name these after what they hold"


def _left_to_defaults(tree):
    """The lines that create a tensor on the default device or of the default type."""
    always = {"device"}
    needed = {"arange": always, "full": always, "tensor": always, "as_tensor": always}
    floats = ("empty", "eye", "linspace", "ones", "zeros")
    needed |= {name: {"device", "dtype"} for name in floats}
    exempt = [node for node in ast.walk(tree) if getattr(node, "name", "") == "from_lengths"]
    exempt = {id(part) for node in exempt for part in ast.walk(node)}
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and id(node) not in exempt
        if is_call and ast.unparse(node.func).startswith("torch."):
            keywords = {keyword.arg for keyword in node.keywords}
            if not needed.get(ast.unparse(node.func)[len("torch.") :], set()) <= keywords:
                yield node.lineno


@pytest.mark.parametrize("folder", ["ops", "recorder", "views/explorer"])
def test_numbers_of_a_recording_are_left_to_no_default_of_the_process(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        if path.name != "positions.py":  # its tables are for models, on their default device
            assert not list(_left_to_defaults(ast.parse(path.read_text("utf-8")))), path
    assert list(_left_to_defaults(ast.parse("a = torch.arange(3)\nb = torch.zeros(3, device=d)")))


def test_no_pickle_and_no_stub():
    """Each torch.load is allowed by the user, and loads only tensors."""
    loads = r"torch\.load(?!\([^)]*weights_only=True)"
    for path in modules():
        text = path.read_text("utf-8")
        assert not re.search(rf"(?<!allow-)\bpickle\b|{loads}|torch\.save|TODO|FIXME", text), path


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def floors_in_contributing(header):
    """Return the module names of each floor of the table under a header, from the ground up."""
    table = CONTRIBUTING.split(f"| floor | {header} |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", table, re.MULTILINE)
    return [{name.rstrip("/").removesuffix(".py") for name in re.findall(r"`(.*?)`", row)}
            for row in reversed(rows)]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "rooms"), [("modules", ROOMS), ("modules of `recorder/`", RECORDER)]
)
def test_contributing_has_every_floor(header, rooms):
    assert floors_in_contributing(header) == [{*names} for names in rooms]


def test_paths_in_contributing_exist():
    paths = re.findall(r"`([\w/]+/(?:[\w.]+)?)`", CONTRIBUTING)
    folders = (ROOT, SOURCE, SOURCE / "recorder", SOURCE / "views", SOURCE / "views" / "explorer")
    assert [p for p in paths if not any((folder / p).exists() for folder in folders)] == []
