"""A variant as the page computes it itself, on any sentence, and what it writes out of numbers."""

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from node import returned
from walks import walk

from heedful.explain import VARIANTS, explain, vector
from heedful.explain.variants import hash32, mix32
from heedful.text.example_texts import SENTENCE
from heedful.text.words import words
from heedful.views import walk as of_walk
from heedful.views.walk.one_file import MOST, as_typed
from heedful.views.walk.page_data import as_bytes

PAGE = Path(of_walk.__file__).parent / "page"
WIRE = PAGE.parents[1] / "explorer" / "page" / "wire.js"
SENTENCES = (
    SENTENCE,
    "Don't panic: 3.14 is fine, 10,000 are well-known; one_two.",
    "tea",
    "我爱注意力 مرحبا بالعالم",
    "Hi 👩‍🚀🇨🇭🇩 naïve café हिन्दी <b>x</b> \u202eabc \x1ca\x85b\ufeffc x²",
    " ".join(f"w{n}" for n in range(MOST)),
)
ALL = """asked.map(([frame, text, second]) => {
  const walk = computed_walk.typed(frame, text, second);
  const heads = walk.heads;
  const { tokens, memory, notes } = walk;
  return { tokens, memory, notes, stages: walk.stages.map((one) => ({
    name: one.name, shape: one.shape, chain: one.chain, sentence: one.sentence,
    formula: one.formula,
    numbers: Array.from({ length: one.shape.length > 2 ? one.shape[0] : 1 }, (_, h) =>
      one.rows.map((r) => one.columns.map((c) =>
        one.at(one.shape.length > 2 ? Math.floor((h * heads) / one.shape[0]) : 0, r, c)))),
  })) };
})"""


@pytest.fixture
def computed(tmp_path):
    """What a line of JavaScript returns, of the names of some modules and of what is `asked`."""

    def call(names, line, asked=None, data=b""):
        modules = {"wire": WIRE, **{name: PAGE / f"{name}.js" for name in names}}
        return returned(tmp_path, modules, line, asked, data)

    return call


def drawn_sentences(count):
    """Sentences of letters, marks and signs of many scripts that Python and node both know."""
    draw = random.Random(7)
    ranges = [(32, 127), (32, 127), (160, 0x250), (0x370, 0x500), (0x5D0, 0x5EB), (0x905, 0x93A),
              (0x2000, 0x2065), (0x3040, 0x3100), (0x4E00, 0x4F00), (0x1F600, 0x1F640)]  # fmt: skip
    for _ in range(count):
        letters = "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(14))
        yield f"x {letters}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "options", [{}, {"dim": 6, "seed": 5}, {"dim": 4, "positions": True, "head_dim": 2}]
)
def test_every_number_is_the_librarys_for_any_sentence(computed, variant, options):
    if variant == "simple":
        options = {name: value for name, value in options.items() if name != "head_dim"}
    frame = as_typed(variant, **options)
    seconds = [*SENTENCES[1:], SENTENCE]  # of other lengths than the first ones
    asked = [[frame, *texts] for texts in zip(SENTENCES, seconds, strict=True)]
    for (_, text, second), made in zip(asked, computed(["computed_walk"], ALL, asked), strict=True):
        memory = {"memory": second} if variant == "cross" else {}
        found = explain(text, variant, **memory, **options)
        assert made["tokens"] == list(found.tokens)
        assert made["memory"] == list(found.memory)
        assert made["notes"] == list(found.notes)
        assert [one["name"] for one in made["stages"]] == [stage.name for stage in found.stages]
        for one, stage in zip(made["stages"], found.stages, strict=True):
            assert one["shape"] == list(stage.shape)
            assert one["chain"] == [list(shape) for shape in stage.chain]
            assert (one["formula"], one["sentence"]) == (stage.formula, stage.sentence)
            expected = stage.numbers().double().numpy().reshape(-1, *stage.shape[-2:])
            numbers = np.array(one["numbers"], dtype=object)
            numbers = np.where(numbers == "-Infinity", -np.inf, numbers).astype(float)
            np.testing.assert_allclose(numbers, expected, rtol=0, atol=1e-12, err_msg=stage.name)


def test_words_and_their_vectors_of_any_script(computed):
    sentences = [*SENTENCES, *drawn_sentences(300), "a" * 300]
    line = "asked.map((text) => words.words(text).map((w) => [w, vectors.vector(w, 5, 3, {})]))"
    for text, made in zip(sentences, computed(["words", "vectors"], line, sentences), strict=True):
        assert made == [[word, list(vector(word, 5, 3))] for word in words(text)], text


# Published values: FNV-1a's, and MurmurHash3's of an empty text with these seeds
HASHES = {"": 0x811C9DC5, "a": 0xE40C292C, "foobar": 0xBF9CF968}
MIXED = {0: 0, 1: 0x514E28B7, 0xFFFFFFFF: 0x81F16F39}


def test_the_hashes_are_the_published_ones_here_and_in_the_page(computed):
    assert {text: hash32(text.encode()) for text in HASHES} == HASHES
    assert {number: mix32(number) for number in MIXED} == MIXED
    line = "asked.map((text) => vectors.hash32(new TextEncoder().encode(text)))"
    assert computed(["vectors"], line, list(HASHES)) == list(HASHES.values())
    assert computed(["vectors"], "asked.map(vectors.mix32)", list(MIXED)) == list(MIXED.values())


CELLS = """walk.stages.flatMap((stage) => {
  const [row, column] = [stage.rows.at(-1), stage.columns.at(1) ?? 0];
  return [0, walk.heads - 1].map((head) => ({
    name: stage.name, value: stage.at(head, row, column),
    line: sums.sum({ stage, head, row, column }).map((part) => part.text).join(""),
  }));
})"""
OF_MODEL = f"((walk) => {CELLS})(stored_walk.given(wire.unpacked(bytes)))"


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
def test_a_written_out_number_of_a_model(computed, kind):
    cells = computed(["stored_walk", "sums"], OF_MODEL, data=as_bytes(walk(kind, layer=1)))
    assert check(cells) > 25


def test_a_convolutions_first_tokens_have_fewer_numbers_and_the_first_none(computed):
    line = """((walk) => {
      const stage = walk.stages.find((one) => one.name === "before");
      return [0, 1, 2, 6].map((row) => ({
        name: stage.name, value: stage.at(0, row, 5),
        line: sums.sum({ stage, head: 0, row, column: 5 }).map((part) => part.text).join(""),
      }));
    })(stored_walk.given(wire.unpacked(bytes)))"""
    first, *others = computed(["stored_walk", "sums"], line, data=as_bytes(walk("convolved")))
    assert first["line"] == "no token stands before = 0.00"
    assert [cell["line"].count("×") for cell in others] == [1, 2, 3]
    assert check(others) == 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_written_out_number_of_a_variant(computed, variant):
    line = f"((walk) => {CELLS})(computed_walk.typed(asked, 'one cup of tea', 'du thé'))"
    assert check(computed(["computed_walk", "sums"], line, as_typed(variant))) > 3


def test_what_was_left_out_is_one_number(computed):
    data = as_bytes(walk("gpt", count=40), room=20_000)
    cells = computed(["stored_walk", "sums"], OF_MODEL, data=data)
    assert any("others" in cell["line"] for cell in cells)
    assert check(cells) > 10
