"""README, the pages and the lessons, done as they say: commands, Python and doctests, in order.

Each document gets a folder of its own, with the texts that it names. What a reader would wait
for is made short by a rule that is the same everywhere: a command that trains gets the options
of SHORT after its own, where the last one counts; so its own are still read and checked.
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
NAMED = re.compile(r"This is `([\w.]+)`:\n*\Z")  # a block after it is the content of that file
TEXTS = ("book.txt", "notes/one.md", "notes/two.txt", "sales_textbook.txt")
WORDS = "It was a dark and stormy night; the rain fell in torrents, and Chapter {} began.\n"
SHORT = ["--batch", "2", "--width", "16", "--layers", "2", "--heads", "2", "--context-length", "32"]
LOCAL = ["--tokenizer", "bpe"]  # a preset with an encoding of tiktoken would fetch it
ENCODED = {"zero-to-hero", "zero-to-hero-fast", "gpt2"}
ELSEWHERE = re.compile(  # not run here: installing, the Makefile, what the demo printed
    r"(PIP_EXTRA_INDEX_URL=\w+ )?(make \w+|pip install -e \.)|heedful demo · .*"
    r"|heedful tokenize .* --tokenizer cl100k_base"  # it would be fetched
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
    """(language, content, the words before it) of each fenced block; a table's command is one."""
    text = IN_A_TABLE.sub(r"```sh\n\1\n```\n", text)
    for found in FENCE.finditer(text):
        yield found[1], found[2], text[: found.start()]


def commands(content):
    """The commands of a block, without what they print and without comments."""
    lines = [line.removeprefix("$ ") for line in content.splitlines()]
    return [line for line in lines if re.match(r"heedful [a-z]|make |pip |PIP_", line)]


def shortened(words):
    """A command that trains, made short."""
    if words[0] != "train":
        return words
    if "--log" in words:  # to packages that are not there: tests/train/test_loggers.py
        words = [*words, "--log", ""]
    if "--resume" in words:
        steps = 6 if "--steps" in words else 4
        return [*words, "--steps", str(steps)]
    return [*words, *SHORT, "--steps", "4", *(LOCAL if ENCODED & {*words} else [])]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_says_can_be_done(path, folder, capsys, as_a_user):
    names = {}
    for language, content, before in blocks(path.read_text("utf-8")):
        if language in ("", "sh", "console"):
            for line in commands(content):
                done(line, capsys)
            if language == "console":
                shown(content, capsys.readouterr().out)
        elif language == "toml":
            (folder / NAMED.search(before)[1]).write_text(content)
        elif language == "python" and ">>>" not in content:
            exec(compile(content, f"{path.name}: python", "exec"), names)
        elif language in ("python", "pycon"):
            examples(content, names, path.name)


@pytest.mark.parametrize("path", lessons.LESSONS, ids=lambda path: path.stem)
def test_a_lesson_ends_with_a_command_for_ones_own_text(path, folder, capsys, as_a_user):
    last = lessons.read(path).cells[-1].source
    assert last.startswith("## On your own text\n")
    told = [line for _, content, _ in blocks(last) for line in commands(content)]
    assert told
    for line in told:
        done(line, capsys)


def done(line, capsys):
    """Run a command of a document, unless it is one that is not run here."""
    line = line.split("  #")[0].strip()
    if line == "make demo":  # what follows it may use its run
        assert run(shortened(["train", "book.txt", "--out", "runs/demo", "--overwrite"])) == 0
    elif not ELSEWHERE.fullmatch(line):
        words = shortened(shlex.split(line)[1:])
        assert run(words) == 0, f"{line}\n{capsys.readouterr().err}"


def shown(content, output):
    """What a console block shows of its command's output is there, but for spaces."""
    there = {" ".join(line.split()) for line in output.splitlines()}
    for line in content.splitlines():
        if line.strip() and not line.startswith("$ "):
            assert " ".join(line.split()) in there, f"{line!r} is not in\n{output}"


def examples(content, names, name):
    """Run a doctest whose names later blocks of the document see."""
    test = doctest.DocTestParser().get_doctest(content, names, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    said = []
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, "".join(said)


def test_each_target_of_make_that_a_document_names_is_there():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for _, content, _ in blocks(path.read_text("utf-8")):
            assert set(re.findall(r"^(?:PIP_\S+ )?make (\w+)", content, re.MULTILINE)) <= targets
