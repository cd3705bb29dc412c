"""Greedy and beam search against exhaustive searches without a cache."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.models import Seq2Seq, Seq2SeqConfig
from heedful.translate import Search, translate

SOURCES = [[1, 2, 0, 1], [2], [0, 0, 1]]


def model_of(seed, tokens=3, context_length=9):
    """Return a model with large weights, so that choices differ, and a tiny vocabulary."""
    torch.manual_seed(seed)
    config = Seq2SeqConfig(
        vocabulary=tokens + 2, context_length=context_length, width=8, layers=1, heads=2
    )
    model = Seq2Seq(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def logarithm(model, source, target):
    """Return the log-probability of a target with its end token."""
    config = model.config
    ids = torch.tensor([[config.begin, *target]])
    logits = model(torch.tensor([[*source, config.end]]), ids).logits[0].double()
    expected = torch.tensor([*target, config.end])
    return logits.log_softmax(-1)[torch.arange(len(expected)), expected].sum().item()


def best_of_all(model, source, longest, penalty):
    """Return the best of all sequences of at most `longest` tokens, including the end token."""
    tokens = range(model.config.begin)
    paths = []
    for length in range(longest):
        for target in itertools.product(tokens, repeat=length):
            value = logarithm(model, source, target)
            paths.append((value / ((5 + length + 1) / 6) ** penalty, list(target), value))
    return max(paths)


@pytest.mark.parametrize(("seed", "penalty"), [(0, 0.0), (1, 0.6), (2, 2.0)])
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(seed, penalty):
    model = model_of(seed)
    search = Search(beams=81, length_penalty=penalty, longest=4)
    for source, targets in zip(SOURCES, translate(model, SOURCES, search), strict=True):
        score, ids, value = best_of_all(model, source, 4, penalty)
        assert targets[0].ids == ids
        assert targets[0].finished
        assert targets[0].score == pytest.approx(score, abs=1e-5)
        assert targets[0].log_prob == pytest.approx(value, abs=1e-5)


def greedy(model, source, longest):
    """Return the likeliest token after each token, reading the full target each time."""
    config, target = model.config, []
    for _ in range(longest):
        ids = torch.tensor([[config.begin, *target]])
        logits = model(torch.tensor([[*source, config.end]]), ids).logits[0, -1]
        logits[config.begin] = -math.inf
        token = int(logits.argmax())
        if token == config.end:
            return target, True
        target.append(token)
    return target, False


@given(st.integers(0, 10_000), st.floats(0, 3), st.integers(1, 7))
@settings(max_examples=8)
def test_one_beam_is_greedy(seed, penalty, longest):
    model = model_of(seed, tokens=6)
    search = Search(beams=1, length_penalty=penalty, longest=longest)
    for source, targets in zip(SOURCES, translate(model, SOURCES, search), strict=True):
        ((ids, value, score, finished),) = targets
        assert (ids, finished) == greedy(model, source, longest)
        if finished:
            assert value == pytest.approx(logarithm(model, source, ids), abs=1e-4)
        assert score == pytest.approx(value / ((5 + len(ids) + finished) / 6) ** penalty)


@pytest.mark.parametrize("beams", [1, 5])
def test_targets_do_not_depend_on_the_batch(beams):
    """The same targets alone and in a batch of unequal lengths."""
    for seed in range(3):
        model, search = model_of(seed, tokens=7), Search(beams=beams)
        alone = [translate(model, [source], search)[0] for source in SOURCES]
        for results, expected in zip(translate(model, SOURCES, search), alone, strict=True):
            assert [target.ids for target in results] == [target.ids for target in expected]
            scores = [target.score for target in expected]
            assert [target.score for target in results] == pytest.approx(scores, abs=1e-5)


def search_in_lists(model, source, beams, penalty, longest):
    """The same search in Python lists, one sequence at a time, without early stopping."""
    config, beam, finished = model.config, [(0.0, [])], []
    for _ in range(longest):
        paths = []
        for value, ids in beam:
            row = torch.tensor([[config.begin, *ids]])
            logits = model(torch.tensor([[*source, config.end]]), row).logits[0, -1].double()
            likely = logits.log_softmax(-1).tolist()
            paths += [(value + likely[t], ids, t) for t in range(len(likely)) if t != config.begin]
        paths = sorted(paths, key=lambda path: -path[0])[: beams - len(finished)]
        beam = [(value, [*ids, t]) for value, ids, t in paths if t != config.end]
        for value, ids, t in paths:
            if t == config.end:
                finished.append((value / ((5 + len(ids) + 1) / 6) ** penalty, ids))
    return max(finished)[1] if finished else None


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.0, 0.6, 1.5]))
@settings(max_examples=5)
def test_narrow_beams_are_those_of_a_search_in_plain_lists(seed, beams, penalty):
    model = model_of(seed, tokens=6)
    search = Search(beams=beams, length_penalty=penalty, longest=5)
    for source, targets in zip(SOURCES, translate(model, SOURCES, search), strict=True):
        expected = search_in_lists(model, source, beams, penalty, 5)
        assert targets[0].finished == (expected is not None)
        if expected is not None:
            assert targets[0].ids == expected
        assert len(targets) <= beams
        assert [t.score for t in targets] == sorted((t.score for t in targets), reverse=True)


def test_wrong_settings_and_sources_are_refused():
    model = model_of(0)
    with pytest.raises(ArgumentError, match="beams = 0"):
        Search(beams=0)
    with pytest.raises(ArgumentError, match="length_penalty"):
        Search(length_penalty=-1.0)
    with pytest.raises(ArgumentError, match="no sources"):
        translate(model, [])
    with pytest.raises(ArgumentError, match="a source of 10 tokens"):
        translate(model, [[0] * 9])
