"""The commands, Python code and doctests of README, pages and lessons, run in their order.

Each document gets a new folder with the texts that it names. The options of `SHORT` are appended to
commands that train. Later options override earlier ones, which are still parsed and checked.
"""

import doctest
import re
import shlex
from pathlib import Path

import lessons
import pytest

from heedful.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *(f"docs/{n}.md" for n in ("index", "documents", "training", "benchmarks")))
SLOW = ROOT / "docs/how-to/processes.md"  # tests/slow/test_how_to_processes.py
HOW_TO = sorted({*ROOT.glob("docs/how-to/*.md")} - {SLOW})
DOCUMENTS = [*(ROOT / page for page in PAGES), *HOW_TO]
IN_A_TABLE = re.compile(r"^\|.*\| `(heedful .*?)` \|.*$\n", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"This is `([\w.]+)`:\n*\Z")  # the next block is the content of this file
TEXTS = ("book.txt", "README.md", "notes/one.md", "notes/two.txt", "sales_textbook.txt")
WORDS = (
    "It was a dark and stormy night; the rain fell in torrents, and Chapter {} began. "
    "Its name is the name of the night.\n"
)
SHORT = ["--batch", "2", "--width", "16", "--layers", "2", "--heads", "2", "--context-length", "32"]
LOCAL = ["--tokenizer", "bpe"]  # instead of an encoding that tiktoken would download
ENCODED = {"zero-to-hero", "zero-to-hero-fast", "gpt2"}
SKIPPED = re.compile(  # installation, the Makefile, the output of the demo
    r"(PIP_EXTRA_INDEX_URL=\w+ )?(make \w+|pip install -e \.)|heedful demo · .*"
    r"|heedful tokenize .* --tokenizer cl100k_base"  # tiktoken would download it
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for number, name in enumerate(TEXTS):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(WORDS.format(number * 100 + i) for i in range(100)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(text):
    """Yield the language, content and preceding text of each fenced block, and table commands."""
    text = IN_A_TABLE.sub(r"```sh\n\1\n```\n", text)
    for match in FENCE.finditer(text):
        yield match[1], match[2], text[: match.start()]


def commands(content):
    """Return the commands of a block, without their output and without comments."""
    lines = [line.removeprefix("$ ") for line in content.splitlines()]
    return [line for line in lines if re.match(r"heedful [a-z]|make |pip |PIP_", line)]


def shortened(words):
    """Append the options of `SHORT` to a command that trains."""
    if words[0] != "train":
        return words
    if words[1].startswith("--") and not {"--resume", "--pairs"} & {*words}:
        words = ["train", "book.txt", *words[1:]]  # smaller than the default text
    if "--log" in words:  # needs further packages: tests/train/test_loggers.py
        words = [*words, "--log", ""]
    if "--resume" in words:
        steps = 6 if "--steps" in words else 4
        return [*words, "--steps", str(steps)]
    return [*words, *SHORT, "--steps", "4", *(LOCAL if ENCODED & {*words} else [])]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_of_a_document_runs(path, folder, capsys, as_a_user):
    names = {}
    for language, content, preceding in blocks(path.read_text("utf-8")):
        if language in ("", "sh", "console"):
            for line in commands(content):
                run_line(line, capsys)
            if language == "console":
                compare_output(content, capsys.readouterr().out)
        elif language == "toml":
            (folder / NAMED.search(preceding)[1]).write_text(content)
        elif language == "python" and ">>>" not in content:
            exec(compile(content, f"{path.name}: python", "exec"), names)
        elif language in ("python", "pycon"):
            examples(content, names, path.name)


@pytest.mark.parametrize("path", lessons.LESSONS, ids=lambda path: path.stem)
def test_a_lesson_ends_with_a_command_for_the_readers_text(path, folder, capsys, as_a_user):
    last = lessons.read(path).cells[-1].source
    assert last.startswith("## On your own text\n")
    lines = [line for _, content, _ in blocks(last) for line in commands(content)]
    assert lines
    for line in lines:
        run_line(line, capsys)


def run_line(line, capsys):
    """Run a command of a document, unless it matches `SKIPPED`."""
    line = line.split("  #")[0].strip()
    if line == "make demo":  # later commands may use its run
        assert run(shortened(["train", "book.txt", "--out", "runs/demo", "--overwrite"])) == 0
    elif not SKIPPED.fullmatch(line):
        words = shortened(shlex.split(line)[1:])
        assert run(words) == 0, f"{line}\n{capsys.readouterr().err}"


def compare_output(content, output):
    """Check that the output has each line of a console block, ignoring the width of spaces."""
    lines = {" ".join(line.split()) for line in output.splitlines()}
    for line in content.splitlines():
        if line.strip() and not line.startswith("$ "):
            assert " ".join(line.split()) in lines, f"{line!r} is not in\n{output}"


def examples(content, names, name):
    """Run a doctest, and add its names for later blocks of the document."""
    test = doctest.DocTestParser().get_doctest(content, names, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    messages = []
    runner.run(test, out=messages.append, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, "".join(messages)


def test_documents_name_only_targets_of_the_makefile():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for _, content, _ in blocks(path.read_text("utf-8")):
            assert set(re.findall(r"^(?:PIP_\S+ )?make (\w+)", content, re.MULTILINE)) <= targets
