"""The lessons as they are stored, and what runs them: `tests/lessons.py`.

`make test-slow` runs each of them.
"""

import re

import lessons
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

each_lesson = pytest.mark.parametrize("path", lessons.LESSONS, ids=lambda path: path.stem)


@each_lesson
def test_a_lesson_is_stored_clean(path):
    stored = lessons.read(path)
    nbformat.validate(stored)
    assert stored == lessons.clean(stored), "run `make lessons`"
    assert path.stat().st_size < 1_000_000


@each_lesson
def test_a_lesson_has_a_title_an_exercise_and_described_pictures(path):
    notebook = lessons.read(path)
    number = path.stem.partition("-")[0]
    assert re.match(rf"# Lesson {number}: \S", notebook.cells[0].source)
    assert list(lessons.answers(notebook))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert cell.source.count("<details>") == len(
                re.findall("^</details>", cell.source, re.M)
            )
        elif any(shown.startswith("[image") for shown in lessons.printed(cell)):
            assert cell.metadata.get("alt"), f"what does this picture show?\n{cell.source}"


def notebook(*sources, tags=()):
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}) for source in sources]
    return nbformat.v4.new_notebook(cells=cells)


def stored(text, tags=()):
    """A lesson of one cell that is said to have printed a text."""
    lesson = notebook("print(...)", tags=tags)
    lesson.cells[0].outputs = [nbformat.v4.new_output("stream", text=text)]
    return lesson


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        ("loss 2.10", "loss 2.11", True),  # one unit of the last digit
        ("loss 2.10", "loss 2.12", False),
        ("[0.1400, -0.0000]", "[0.1400,  0.0000]", True),
        ("1234.5", "1235.1", True),  # a thousandth
        ("1.2e-08", "1.3e-08", True),
        ("1.2e-08", "1.2e-07", False),
        ("10 tokens", "11 tokens", False),
        ("10 tokens", "10.0 tokens", False),
        ("torch.Size([2, 3])", "torch.Size([2, 4])", False),
        ("king 0.52", "queen 0.52", False),
        ("0.5 0.5", "0.5", False),
        ("w_1 = 3", "w_2 = 3", False),
    ],
)
def test_what_may_differ_between_two_runs(old, new, agree):
    assert (list(lessons.differences(stored(old), stored(new))) == []) is agree
    assert list(lessons.differences(stored(old, ["times"]), stored(new, ["times"]))) == []
    missing = stored(new)
    missing.cells[0].outputs = []
    assert len(list(lessons.differences(stored(old), missing))) == 1


def test_a_wrong_answer_and_a_warning_are_seen():
    """The runner itself, on a lesson that warns, and whose answer is wrong."""
    lesson = notebook("import warnings; warnings.warn('old')")
    assert any("old" in words for words in lessons.complaints(lessons.run(lesson)))
    answer = "<details><summary>Answer</summary>\n\n```python\nassert 1 == 2\n```\n\n</details>"
    lesson.cells.append(nbformat.v4.new_markdown_cell(answer))
    with pytest.raises(CellExecutionError, match="AssertionError"):
        lessons.run(lesson)
