"""Head scores over many recordings: means over all queries, for any split of the recordings."""

import numpy as np
import pytest
import torch
from head_scores_by_definition import over_texts
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.errors import RunError
from heedful.head_kinds import MEANS, SCORES
from heedful.models import GPT, GPTConfig
from heedful.recording import HeadTotals, from_attentions

SIZES = (13, 2, 7, 24, 3)
LAYERS, HEADS = 2, 3


def recorded(size, seed):
    torch.manual_seed(seed)
    ids = torch.randint(0, 6, (1, size))
    with heedful.record(MODEL) as recording:
        MODEL(ids)
    return recording


torch.manual_seed(3)
MODEL = GPT(GPTConfig(vocabulary=6, context_length=24, width=12, layers=LAYERS, heads=HEADS)).eval()
for parameter in MODEL.parameters():
    torch.nn.init.normal_(parameter, std=0.7)


@pytest.fixture(scope="module")
def recordings():
    return [recorded(size, seed) for seed, size in enumerate(SIZES)]


def totals_of(recordings, numbers):
    totals = HeadTotals()
    for number in numbers:
        totals.add(recordings[number], (number,), f"text {number}")
    return totals


def test_scores_are_means_over_all_queries(recordings):
    heads = totals_of(recordings, range(len(SIZES))).heads()
    assert [(head.layer, head.head) for head in heads] == [
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    ]
    for layer in range(LAYERS):
        maps = [(x[layer].weights(), x[layer].ids.tolist()) for x in recordings]
        means, chance, queries = over_texts(maps)
        for head in heads[layer * HEADS : (layer + 1) * HEADS]:
            scores = head.scores | {name: getattr(head, name) for name in MEANS}
            for name, number in scores.items():
                assert number == pytest.approx(means[name][head.head], abs=2e-6), name
            for name in SCORES:
                assert head.queries[name] == queries[name]
                if name != "broad":
                    assert head.chance[name] == pytest.approx(chance[name][0], abs=2e-6), name
    means = [recording.heads()[0].previous for recording in recordings]
    assert abs(np.mean(means) - heads[0].previous) > 1e-3  # not the mean of means


def test_the_totals_of_one_recording_equal_its_heads(recordings):
    assert totals_of(recordings, [3]).heads() == recordings[3].heads()


@settings(max_examples=30)
@given(
    order=st.permutations(range(len(SIZES))),
    owner=st.lists(st.integers(0, 2), min_size=len(SIZES), max_size=len(SIZES)),
    merged=st.permutations(range(3)),
)
def test_any_split_merges_to_the_same_bits(singles, order, owner, merged):
    parts = [HeadTotals() for _ in range(3)]
    for number in order:
        parts[owner[number]].merge(singles[number])
    together = HeadTotals()
    for rank in merged:
        together.merge(parts[rank])
    everything = HeadTotals()
    for single in singles:
        everything.merge(single)
    assert together.heads() == everything.heads()
    assert together.calls.keys() == everything.calls.keys()


@pytest.fixture(scope="module")
def singles(recordings):
    return [totals_of(recordings, [number]) for number in range(len(SIZES))]


def test_merging_equals_adding(recordings, singles):
    together = HeadTotals()
    for single in reversed(singles):
        together.merge(single)
    assert together.heads() == totals_of(recordings, range(len(SIZES))).heads()


def identity_maps(*sizes):
    return [from_attentions([torch.eye(N).expand(1, 2, N, N)]) for N in sizes]


def test_a_call_refuted_on_one_text_has_no_scores():
    good, bad, other = identity_maps(5, 3, 4)
    bad._captures[0].refutations[0] = "invented"
    for order in ([0, 1, 2], [1, 2, 0]):
        head, _ = totals_of([good, bad, other], order).heads()
        assert (head.proof, head.why) == ("refuted", "invented (of text 1)")
        assert head.kind == "-"
        assert head.self_ is None
        assert head.queries["self"] == 0


def test_the_certificate_has_the_worst_proof():
    totals = totals_of(identity_maps(5, 3), [1, 0])
    [(name, call)] = totals.certificate()
    assert (name, call.proof, call.why_from) == ("layer 0", "unproved", (0,))
    assert call.why == "not compared: only the weights are known"


def test_sequences_of_a_batch_count_as_texts():
    maps = torch.rand(3, 2, 7, 7).softmax(-1)
    together, separately = HeadTotals(), HeadTotals()
    together.add(from_attentions([maps]), (0,))
    for number, map_ in enumerate(maps):
        separately.add(from_attentions([map_[None]]), (number,))
    assert together.heads() == separately.heads()


def test_another_number_of_heads_is_refused():
    totals = totals_of(identity_maps(5), [0])
    with pytest.raises(RunError, match="has 2 heads on one text and 3 on another"):
        totals.add(from_attentions([torch.eye(4).expand(1, 3, 4, 4)]), (1,))


def test_a_module_that_is_called_twice_has_two_calls():
    totals = HeadTotals()
    for number, size in enumerate((4, 6)):
        x = torch.randn(1, 2, size, 4)
        with heedful.record(TWICE) as recording:
            TWICE(x)
        totals.add(recording, (number,))
    assert [(head.name, head.call, head.head) for head in totals.heads()] == [
        ("Twice", call, head) for call in (0, 1) for head in (0, 1)
    ]


class Twice(torch.nn.Module):
    def forward(self, x):
        first = heedful.attention(x, x, x)
        return heedful.attention(first, first, first)


TWICE = Twice()


def test_progress_rises_to_1():
    shares = []
    recording = from_attentions([torch.rand(2, H, 5, 5).softmax(-1) for H in (2, 3)])
    HeadTotals().add(recording, (0,), progress=shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1.0
