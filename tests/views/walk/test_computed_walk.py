"""The walks that the page computes on typed sentences, and the numbers that it writes out."""

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from explained_models import walk
from node import returned

from heedful.explain import VARIANTS, explain, vector
from heedful.explain.variants import hash32, mix32
from heedful.text.example_texts import SENTENCE
from heedful.text.words import words
from heedful.views import walk as walk_views
from heedful.views.walk.one_file import MAX_WORDS, variant_data
from heedful.views.walk.page_data import packed_walk

PAGE = Path(walk_views.__file__).parent / "page"
WIRE = PAGE.parents[1] / "explorer" / "page" / "wire.js"
SENTENCES = (
    SENTENCE,
    "Don't panic: 3.14 is fine, 10,000 are well-known; one_two.",
    "tea",
    "我爱注意力 مرحبا بالعالم",
    "Hi 👩‍🚀🇨🇭🇩 naïve café हिन्दी <b>x</b> \u202eabc \x1ca\x85b\ufeffc x²",
    " ".join(f"w{n}" for n in range(MAX_WORDS)),
)
ALL = """inputs.map(([frame, text, second]) => {
  const walk = computed_walk.computeWalk(frame, text, second);
  const heads = walk.heads;
  const { tokens, memory, notes } = walk;
  return { tokens, memory, notes, stages: walk.stages.map((stage) => ({
    name: stage.name, shape: stage.shape, chain: stage.chain, sentence: stage.sentence,
    formula: stage.formula,
    numbers: Array.from({ length: stage.shape.length > 2 ? stage.shape[0] : 1 }, (_, h) =>
      stage.rows.map((r) => stage.columns.map((c) =>
        stage.at(stage.shape.length > 2 ? Math.floor((h * heads) / stage.shape[0]) : 0, r, c)))),
  })) };
})"""


@pytest.fixture
def computed(tmp_path):
    """Evaluates JavaScript with the page's modules, the value `inputs` and the data `bytes`."""

    def call(names, line, inputs=None, data=b""):
        modules = {"wire": WIRE, **{name: PAGE / f"{name}.js" for name in names}}
        return returned(tmp_path, modules, line, inputs, data)

    return call


def random_sentences(count):
    """Sentences of characters of many scripts that both Python and node support."""
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
def test_every_number_equals_the_librarys_for_any_sentence(computed, variant, options):
    if variant == "simple":
        options = {name: value for name, value in options.items() if name != "head_dim"}
    frame = variant_data(variant, **options)
    seconds = [*SENTENCES[1:], SENTENCE]  # lengths differ from those of the first texts
    inputs = [[frame, *texts] for texts in zip(SENTENCES, seconds, strict=True)]
    walks = computed(["computed_walk"], ALL, inputs)
    for (_, text, second), page_walk in zip(inputs, walks, strict=True):
        memory = {"memory": second} if variant == "cross" else {}
        explanation = explain(text, variant, **memory, **options)
        for name in ("tokens", "memory", "notes"):
            assert page_walk[name] == list(getattr(explanation, name))
        for entry, stage in zip(page_walk["stages"], explanation.stages, strict=True):
            assert entry["name"] == stage.name
            assert entry["shape"] == list(stage.shape)
            assert entry["chain"] == [list(shape) for shape in stage.chain]
            assert (entry["formula"], entry["sentence"]) == (stage.formula, stage.sentence)
            expected = stage.numbers().double().numpy().reshape(-1, *stage.shape[-2:])
            numbers = np.array(entry["numbers"], dtype=object)
            numbers = np.where(numbers == "-Infinity", -np.inf, numbers).astype(float)
            np.testing.assert_allclose(numbers, expected, rtol=0, atol=1e-12, err_msg=stage.name)


def test_words_and_their_vectors_of_any_script(computed):
    sentences = [*SENTENCES, *random_sentences(300), "a" * 300]
    line = "inputs.map((s) => words.words(s).map((w) => [w, hashed_vectors.vector(w, 5, 3, {})]))"
    results = computed(["words", "hashed_vectors"], line, sentences)
    for text, result in zip(sentences, results, strict=True):
        assert result == [[word, list(vector(word, 5, 3))] for word in words(text)], text


# Published values: of FNV-1a, and of MurmurHash3 on an empty text with these seeds
HASHES = {"": 0x811C9DC5, "a": 0xE40C292C, "foobar": 0xBF9CF968}
MIXED = {0: 0, 1: 0x514E28B7, 0xFFFFFFFF: 0x81F16F39}


def test_the_hashes_are_the_published_ones_here_and_in_the_page(computed):
    assert {text: hash32(text.encode()) for text in HASHES} == HASHES
    assert {number: mix32(number) for number in MIXED} == MIXED
    line = "inputs.map((text) => hashed_vectors.hash32(new TextEncoder().encode(text)))"
    assert computed(["hashed_vectors"], line, list(HASHES)) == list(HASHES.values())
    assert computed(["hashed_vectors"], "inputs.map(hashed_vectors.mix32)", list(MIXED)) == list(
        MIXED.values()
    )


CELLS = """walk.stages.flatMap((stage) => {
  const [row, column] = [stage.rows.at(-1), stage.columns.at(1) ?? 0];
  return [0, walk.heads - 1].map((head) => ({
    name: stage.name, value: stage.at(head, row, column),
    line: sums.calculationParts({ stage, head, row, column }).map((p) => p.text).join(""),
  }));
})"""
OF_MODEL = f"((walk) => {CELLS})(stored_walk.readWalk(wire.unpacked(bytes)))"


def value(text):
    """Evaluate the text left of the equals sign; None if it is words."""
    text = re.sub(r" \([\d,]+ others\)", "", text.replace("−", "-"))
    text = text.replace("·", "*").replace("×", "*").replace("²", "**2")
    text = re.sub(r"e\^(\([^)]*\)|-?[\d.]+)", r"exp(\1)", text)
    text = re.sub(r"10000\^", "10000**", text)
    if re.search(r"\b(row|number|masked|others)\b", text):
        return None
    return eval(text, {"exp": math.exp, "max": max, "sin": math.sin, "cos": math.cos})


def check(cells):
    checked = 0
    for cell in cells:
        if not cell["line"]:
            continue
        calculation, sign, total = cell["line"].rpartition(" = ")
        assert sign, cell
        if cell["value"] == "-Infinity":
            assert total == "−∞"
            continue
        number = float(total.replace("−", "-"))
        assert number == pytest.approx(cell["value"], rel=6e-3, abs=6e-5)
        result = value(calculation)
        if result is not None:
            assert result == pytest.approx(cell["value"], rel=2e-2, abs=6e-3), cell
            checked += 1
    return checked


@pytest.mark.parametrize("kind", ["gpt", "grouped", "bert", "seq2seq"])
def test_a_written_out_number_of_a_model(computed, kind):
    cells = computed(["stored_walk", "sums"], OF_MODEL, data=packed_walk(walk(kind, layer=1)))
    assert check(cells) > 25


def test_a_convolutions_first_tokens_have_fewer_numbers_and_the_first_none(computed):
    line = """((walk) => {
      const stage = walk.stages.find((each) => each.name === "before");
      return [0, 1, 2, 6].map((row) => ({
        name: stage.name, value: stage.at(0, row, 5),
        line: sums.calculationParts({ stage, head: 0, row, column: 5 }).map((p) => p.text).join(""),
      }));
    })(stored_walk.readWalk(wire.unpacked(bytes)))"""
    first, *others = computed(["stored_walk", "sums"], line, data=packed_walk(walk("convolved")))
    assert first["line"] == "no token before = 0.00"
    assert [cell["line"].count("×") for cell in others] == [1, 2, 3]
    assert check(others) == 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_written_out_number_of_a_variant(computed, variant):
    line = f"((walk) => {CELLS})(computed_walk.computeWalk(inputs, 'one cup of tea', 'du thé'))"
    assert check(computed(["computed_walk", "sums"], line, variant_data(variant))) > 3


def test_terms_that_are_not_stored_are_a_single_number(computed):
    data = packed_walk(walk("gpt", count=40), room=20_000)
    cells = computed(["stored_walk", "sums"], OF_MODEL, data=data)
    assert any("others" in cell["line"] for cell in cells)
    assert check(cells) > 10


def test_the_plane_of_a_query_shows_scores_and_the_first_principal_component(computed):
    draw = np.random.default_rng(2)
    points, path = draw.normal(size=(6, 5)), draw.normal(size=(3, 5))
    shown = computed(["plane"], "plane.project(...inputs)", [points.tolist(), path.tolist()])
    along = (path[2] - path[0]) / np.linalg.norm(path[2] - path[0])
    everything = np.vstack([points, path])
    np.testing.assert_allclose(np.array(shown)[:, 0], everything @ along)
    rest = points @ (np.eye(5) - np.outer(along, along))
    axis = np.linalg.svd(rest - rest.mean(axis=0))[2][0]
    across = np.array(shown)[:, 1]
    np.testing.assert_allclose(np.abs(everything @ axis), np.abs(across), atol=1e-6)
    flat = draw.normal(size=(3, 2)).tolist()
    assert computed(["plane"], "plane.project(...inputs)", [flat, flat]) == flat + flat
