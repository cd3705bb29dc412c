"""A variant as the page computes it itself, beside the library's, on any sentence."""

import random

import numpy as np
import pytest

from heedful.explain import VARIANTS, explain, vector
from heedful.explain.variants import hash32, mix32
from heedful.text.examples import SENTENCE
from heedful.text.words import words
from heedful.views.walk.offline import MOST, as_typed

SENTENCES = (
    SENTENCE,
    "Don't panic: 3.14 is fine, 10,000 are well-known; one_two.",
    "tea",
    "我爱注意力 مرحبا بالعالم",
    "Hi 👩‍🚀🇨🇭🇩 naïve café हिन्दी <b>x</b> \u202eabc \x1ca\x85b\ufeffc x²",
    " ".join(f"w{n}" for n in range(MOST)),
)
ALL = """asked.map(([frame, text, second]) => {
  const walk = typed.typed(frame, text, second);
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
    for (_, text, second), made in zip(asked, computed(["typed"], ALL, asked), strict=True):
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


def test_document_002s_printed_numbers(computed):
    [made] = computed(["typed"], ALL, [[as_typed("simple"), SENTENCE, ""]])
    stages = {one["name"]: np.array(one["numbers"][0]).round(4) for one in made["stages"]}
    assert stages["scores"][0].tolist() == [0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310]
    assert stages["scores"][1].tolist() == [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865]
    assert stages["weights"][1].tolist() == [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581]
    assert stages["context"][1].tolist() == [0.4419, 0.6515, 0.5683]
    assert stages["context"][5].tolist() == [0.4177, 0.6503, 0.5645]


def test_words_beyond_those_that_are_computed_are_counted(computed):
    line = """(({ tokens, memory, beyond }) => [tokens.length, memory.length, beyond])
      (typed.typed(asked, 'a '.repeat(45), 'b '.repeat(50)))"""
    assert computed(["typed"], line, as_typed("simple")) == [MOST, 0, [5, 0]]
    assert computed(["typed"], line, as_typed("cross")) == [MOST, MOST, [5, 10]]
