"""`explain`: each number against its formula, and the output against the layers."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recomputed_numbers import check_numbers, masked_pairs

from heedful.errors import ArgumentError, TextError
from heedful.explain import VARIANTS, explain, vector
from heedful.explain.variants import random_layer

SENTENCE = "Your journey starts with one step"


def numbers(walk, name):
    return walk.stage(name).numbers().double().numpy()


def names(walk):
    return [stage.name for stage in walk.stages]


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_document_002_to_its_four_decimals():
    walk = explain(SENTENCE)
    assert names(walk) == ["embeddings", "scores", "weights", "context"]
    printed = {
        "scores": [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],
        "weights": [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],
        "context": [0.4419, 0.6515, 0.5683],
    }
    for name, row in printed.items():
        assert np.array_equal(numbers(walk, name)[1].round(4), row), name
    last = [0.4177, 0.6503, 0.5645]
    assert np.array_equal(numbers(walk, "context")[5].round(4), last)


def test_document_001_shapes():
    walk = explain("Terry loves to eat Mango Greek Yogurt", "projected")
    shapes = {stage.name: stage.shape for stage in walk.stages}
    assert shapes["embeddings"] == (7, 128)
    assert shapes["W_query"] == (128, 16)
    assert shapes["query"] == shapes["key"] == shapes["value"] == shapes["context"] == (7, 16)
    assert shapes["scores"] == shapes["weights"] == (7, 7)
    assert shapes["projected"] == shapes["output"] == (7, 128)
    refined = numbers(walk, "projected") + numbers(walk, "embeddings")
    np.testing.assert_allclose(numbers(walk, "output"), refined, atol=1e-12)


SENTENCES = st.text(min_size=1, max_size=30).filter(
    lambda text: text.split() and not any("\ud800" <= char <= "\udfff" for char in text)
)


@settings(max_examples=40)
@given(
    SENTENCES,
    SENTENCES,
    st.sampled_from(list(VARIANTS)),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5]),
    st.integers(0, 99),
    st.booleans(),
)
def test_every_number_equals_its_formula(text, memory, variant, heads, width, seed, positions):
    several = VARIANTS[variant].heads is not None
    walk = explain(
        text,
        variant,
        memory=memory if variant == "cross" else None,
        dim=2 * width * heads,
        heads=heads if several else None,
        seed=seed,
        positions=positions,
    )
    assert check_numbers(walk, 1e-9) >= 3
    later = torch.ones(len(walk.tokens), len(walk.tokens)).triu(1).bool()
    assert [pairs.tolist() for pairs in masked_pairs(walk)] == [later.tolist()] * VARIANTS[
        variant
    ].causal


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_last_stage_is_the_output_of_the_layer(variant):
    memory = "une tasse de thé" if variant == "cross" else None
    walk = explain("a cup of tea, a cup", variant, memory=memory, dim=6, seed=3)
    kind = VARIANTS[variant]
    layer = random_layer(lambda: kind.layer(6, kind.heads or 1, None), seed=3)
    inputs = [walk.stage("embeddings").numbers()[None]]
    if memory:
        inputs.append(walk.stage("memory").numbers()[None])
    options = {"causal": True} if variant == "multihead" else {}
    with torch.inference_mode():
        expected = layer(*inputs, **options)[0]
    assert torch.allclose(walk.stages[-1].numbers(), expected, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_part_is_part_of_all_numbers_and_the_sum_of_its_terms(variant):
    memory = "two three five seven" if variant == "cross" else None
    walk = explain("to be or not to be", variant, memory=memory, dim=4)
    for stage in walk.stages:
        everything = stage.numbers()
        assert everything.shape == stage.shape
        rows, columns = [stage.shape[-2] - 1, 0], [stage.shape[-1] - 1]
        torch.testing.assert_close(
            stage.part(rows, columns), everything[..., rows, :][..., columns]
        )
        for head in range(walk.heads if stage.factors else 0):
            vector, other, bias = stage.terms(1, columns[0], head, walk.heads)
            number = stage.of_head(head, walk.heads, [1], columns)[0, 0]
            assert bias is None
            torch.testing.assert_close(vector @ other, number)


def test_a_word_has_the_same_vector_at_every_position():
    first, second = explain("tea or coffee"), explain("coffee for one")
    assert np.array_equal(numbers(first, "embeddings")[2], numbers(second, "embeddings")[0])
    assert vector("one", 3) == (0.77, 0.25, 0.10)
    assert vector("one", 4) != vector("one", 4, seed=1)
    assert all(0 <= number <= 1 for number in vector("火", 50))
    assert "one" in second.notes[0]
    assert "seed 0" in second.notes[0]


def test_the_global_random_state_is_unchanged():
    before = torch.random.get_rng_state()
    explain("a b", "multihead", seed=5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_ten_thousand_words_need_no_full_map():
    walk = explain(" ".join(f"w{n % 321}" for n in range(10_000)), "causal")
    assert walk.stage("weights").shape == (10_000, 10_000)
    row = walk.stage("weights").part([9_999], range(10_000))[0].numpy()
    query, key = numbers(walk, "query"), numbers(walk, "key")
    expected = softmax(key @ query[-1] / np.sqrt(3))
    np.testing.assert_allclose(row, expected, atol=1e-12)
    context = walk.stage("context").part([9_999], range(3))[0].numpy()
    np.testing.assert_allclose(context, expected @ numbers(walk, "value"), atol=1e-9)
    assert walk.stage("masked").part([0, 1], [9_999]).isinf().all()


def test_the_positions_of_a_word():
    walk = explain("The cat saw the Cat , the @ 4")
    assert walk.positions_of("the") == [3, 6]
    assert walk.positions_of("THE") == [0, 3, 6]
    assert walk.positions_of("@4") == [4]
    assert walk.positions_of("4") == [8]
    for wrong in ("dog", "@9", ""):
        with pytest.raises(ArgumentError, match="one of The, cat, saw"):
            walk.positions_of(wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variant": "sparse"}, "one of simple"),
        ({"variant": "cross"}, "second text"),
        ({"memory": "b"}, "second text"),
        ({"variant": "multihead", "heads": 3}, "divides"),
        ({"variant": "multihead", "head": 2}, "head 2; expected 0 to 1"),
        ({"variant": "causal", "heads": 2}, "one head"),
        ({"head_dim": 2}, "no weights"),
        ({"dim": -1}, "1 or more"),
        ({"positions": True, "dim": 3}, "even"),
        ({"text": " "}, "empty text"),
        ({"variant": "cross", "memory": "\n"}, "empty text"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    with pytest.raises((ArgumentError, TextError), match=words):
        explain(**{"text": "a b c", **options})


def test_positions_are_those_of_the_formula():
    walk = explain("one two three four five", "trainable", dim=6, positions=True)
    places, pairs = np.arange(5)[:, None], np.arange(3)
    angles = places / 10_000 ** (2 * pairs / 6)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(5, 6)
    np.testing.assert_allclose(walk.stage("positions").numbers(), expected, atol=1e-6)


@pytest.mark.parametrize("head_dim", [1, 3, 5])
def test_the_formula_divides_by_the_root_that_it_names(head_dim):
    walk = explain("a b c", "trainable", dim=4, head_dim=head_dim)
    scaled, scores = walk.stage("scaled"), walk.stage("scores")
    root = float(re.search(r"/ (\d+\.\d+)$", scaled.formula)[1])
    assert root == pytest.approx(head_dim**0.5, abs=5.1e-5)
    np.testing.assert_allclose(scaled.numbers() * root, scores.numbers(), rtol=1e-4, atol=1e-9)
