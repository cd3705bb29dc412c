"""Numbers written out on the page: what is written there gives the number."""

import math
import re

import pytest
from walks import walk

from heedful.explain import VARIANTS, document_004
from heedful.views.walk.offline import as_typed
from heedful.views.walk.page_data import as_bytes

CELLS = """walk.stages.flatMap((stage) => {
  const [row, column] = [stage.rows.at(-1), stage.columns.at(1) ?? 0];
  return [0, walk.heads - 1].map((head) => ({
    name: stage.name, value: stage.at(head, row, column),
    line: sums.sum({ stage, head, row, column }).map((part) => part.text).join(""),
  }));
})"""


def value(text):
    """What is written left of the sign, by Python's arithmetic; None where it is words."""
    text = re.sub(r" \([\d,]+ others\)", "", text.replace("−", "-"))
    text = text.replace("·", "*").replace("×", "*").replace("²", "**2")
    text = re.sub(r"e\^(\([^)]*\)|-?[\d.]+)", r"exp(\1)", text)
    text = re.sub(r"10000\^", "10000**", text)
    if re.search(r"\b(row|number|hidden|others)\b", text):
        return None
    return eval(text, {"exp": math.exp, "max": max, "sin": math.sin, "cos": math.cos})


def check(cells):
    checked = 0
    for cell in cells:
        if not cell["line"]:
            continue
        made, sign, total = cell["line"].rpartition(" = ")
        assert sign, cell
        if cell["value"] == "-Infinity":
            assert total == "−∞"
            continue
        shown = float(total.replace("−", "-"))
        assert shown == pytest.approx(cell["value"], rel=6e-3, abs=6e-5)
        again = value(made)
        if again is not None:
            assert again == pytest.approx(cell["value"], rel=2e-2, abs=6e-3), cell
            checked += 1
    return checked


@pytest.mark.parametrize("kind", ["gpt", "grouped", "bert", "seq2seq"])
def test_of_a_model(computed, kind):
    data = as_bytes(walk(kind, layer=1))
    line = f"((walk) => {CELLS})(given.given(wire.unpacked(bytes)))"
    cells = computed(["given", "sums"], line, data=data)
    assert check(cells) > 25


def test_a_convolutions_first_tokens_have_fewer_numbers_and_the_first_none(computed):
    line = """((walk) => {
      const stage = walk.stages.find((one) => one.name === "before");
      return [0, 1, 2, 6].map((row) => ({
        name: stage.name, value: stage.at(0, row, 5),
        line: sums.sum({ stage, head: 0, row, column: 5 }).map((part) => part.text).join(""),
      }));
    })(given.given(wire.unpacked(bytes)))"""
    first, *others = computed(["given", "sums"], line, data=as_bytes(walk("convolved")))
    assert first["line"] == "no token stands before = 0.00"
    assert [cell["line"].count("×") for cell in others] == [1, 2, 3]
    assert check(others) == 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_a_variant(computed, variant):
    line = f"((walk) => {CELLS})(typed.typed(asked, 'one cup of tea', 'du thé'))"
    assert check(computed(["typed", "sums"], line, as_typed(variant))) > 3


def test_what_was_left_out_is_one_number(computed):
    data = as_bytes(walk("gpt", count=40), room=20_000)
    line = f"((walk) => {CELLS})(given.given(wire.unpacked(bytes)))"
    cells = computed(["given", "sums"], line, data=data)
    assert any("others" in cell["line"] for cell in cells)
    assert check(cells) > 10


def test_document_004(computed):
    line = f"((walk) => {CELLS})(given.given(wire.unpacked(bytes)))"
    cells = computed(["given", "sums"], line, data=as_bytes(document_004()))
    weights = next(cell for cell in cells if cell["name"] == "weights")
    assert weights["line"] == "e^0.1498 / (e^(−0.0627) + e^0.1498 + e^(−0.3736)) = 0.4165"
