"""Scores of calls, summaries and heads equal their definitions in NumPy; chance of scores."""

import numpy as np
import pytest
import torch
from torch import nn

import heedful
from heedful.cli.demo import strongest_heads
from heedful.head_kinds import (
    MIN_QUERIES,
    MIN_SCORE,
    ONCE_IN,
    REACH,
    SCORES,
    exceeds_chance,
    kind_of,
)
from heedful.layers import CrossAttention
from heedful.models import GPT, Bert, BertConfig, GPTConfig
from heedful.ops.masks import Causal, KeyRanges, Window
from heedful.recording import from_attentions

B, H, N = 2, 3, 11
IDS = torch.randint(3, 8, (B, N), generator=torch.Generator().manual_seed(4))
KEEP = torch.tensor([[True] * N, [True] * 7 + [False] * 4])


class Masked(nn.Module):
    """Attention of H heads with a mask of its own."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        x = x.unflatten(-1, (H, -1)).transpose(1, 2)
        return heedful.attention(x.sin(), x.cos(), x, mask=self.mask)


def causal():
    return GPT(GPTConfig(vocabulary=9, context_length=N, width=12, layers=2, heads=H)), (IDS,), {}


def padded(keep):
    model = Bert(BertConfig(vocabulary=9, context_length=N, width=12, layers=2, heads=H))
    return model, (IDS,), {"keep": keep}


def masked(mask):
    return Masked(mask), (torch.randn(B, N, 4 * H),), {}


def crossing():
    model = CrossAttention(12, heads=H)
    return model, (torch.randn(B, 7, 12), torch.randn(B, 5, 12)), {}


MODELS = {
    "causal": causal,
    "bidirectional, padded on the right": lambda: padded(KEEP),
    "padded on the left": lambda: padded(KEEP.flip(1)),
    "windowed": lambda: masked(Causal() & Window(3)),
    "a window on both sides": lambda: masked(Window(2)),
    "bidirectional": lambda: masked(None),
    "documents": lambda: masked(KeyRanges.from_lengths([4, 7]) & Causal()),
    "crossing": crossing,
}


def recorded(name):
    torch.manual_seed(len(name))
    model, arguments, keywords = MODELS[name]()
    with torch.no_grad(), heedful.record(model.eval()) as recording:
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
        model(*arguments, **keywords)
    return recording


def by_definition(map_, allowed, ids, crosses):
    """Each score of each row by its definition, (H, N); NaN if the query has no choice."""
    heads, rows, M = map_.shape
    scores = {name: np.full((heads, rows), np.nan) for name in SCORES}
    for n in range(rows):
        p = n + M - rows
        if allowed[n].sum() > 1:
            safe = np.where(map_[:, n] > 0, map_[:, n], 1)
            scores["broad"][:, n] = -(safe * np.log(safe)).sum(-1) / np.log(allowed[n].sum())
        same = [[] if ids is None else [m for m in range(shift, p) if ids[m - shift] == ids[p]]
                for shift in (0, 1)]  # fmt: skip
        keys = {
            "sink": [0] if crosses or p > 0 else [],
            "self": [p],
            "previous": [p - 1] if p else [],
            "local": [m for m in range(M) if abs(m - p) <= REACH],
            "duplicate": same[0],
            "induction": same[1],
        }
        for name in ["sink"] if crosses else keys:
            inside = [m for m in keys[name] if allowed[n, m]]
            if 0 < len(inside) < allowed[n].sum():
                scores[name][:, n] = map_[:, n, inside].sum(-1)
    return scores


def mean(rows):
    """Means over queries, (H,); None if all are NaN."""
    return [float(np.nanmean(row)) if (~np.isnan(row)).any() else None for row in rows]


@pytest.mark.parametrize("name", MODELS)
def test_all_interfaces_return_the_definition(name):
    for sequence in recorded(name).sequences:
        heads, summary = sequence.heads(), sequence.summary()
        for at, call in enumerate(sequence):
            map_ = call.weights().double().numpy()
            allowed = np.ones(map_.shape[1:], bool)
            if call.causes.mask is not None:
                allowed = call.causes.mask.crop(call.shape[1:]).numpy()
            ids = None if call.ids is None else call.ids.tolist()
            crosses = call.kind == "cross"
            assert crosses == (name == "crossing")
            rows = by_definition(map_, allowed, ids, crosses)
            spread = allowed / np.maximum(allowed.sum(-1, keepdims=True), 1)
            evenly = by_definition(np.repeat(spread[None], H, 0), allowed, ids, crosses)
            mine = heads[at * H : at * H + H]
            assert [(head.call, head.head) for head in mine] == [(at, h) for h in range(H)]
            for score in SCORES:
                values = [head.scores[score] for head in mine]
                assert values == [w and pytest.approx(w, abs=1e-5) for w in mean(rows[score])]
                counted = (~np.isnan(rows[score])).sum(-1).tolist()
                assert [head.queries[score] for head in mine] == counted
                expected = [None] * H if score == "broad" else mean(evenly[score])
                chance = [head.chance[score] for head in mine]
                assert chance == [w and pytest.approx(w, abs=1e-5) for w in expected]
            for score, requested in (
                ("sink", call.sink()),
                ("self", call.diagonal(0)),
                ("previous", call.diagonal(1)),
            ):
                means = torch.tensor([np.nan if w is None else w for w in mean(rows[score])])
                for result in (requested, call.summary()[score], summary[score][at]):
                    torch.testing.assert_close(result, means, atol=1e-5, rtol=0, equal_nan=True)
                for h in range(H):
                    alone = (
                        call.sink(h)
                        if score == "sink"
                        else call.diagonal(int(score == "previous"), h)
                    )
                    torch.testing.assert_close(alone, means[h], atol=1e-5, rtol=0, equal_nan=True)


def test_the_demo_prints_the_score_of_its_head():
    map_ = torch.rand(1, H, N, N).tril()
    map_ /= map_.sum(-1, keepdim=True)
    recording = from_attentions([map_])
    (layer, head, _, share), (_, _, _, further) = strongest_heads(recording)
    heads = recording.heads()
    assert (layer, share) == (0, pytest.approx(max(head.previous for head in heads), abs=1e-6))
    assert heads[head].previous == pytest.approx(share, abs=1e-6)
    back = [[map_[0, h, n, 1 : n - 1].sum() for n in range(2, N)] for h in range(H)]
    assert further == pytest.approx(torch.tensor(back).mean(1).max().item(), abs=1e-6)


def test_chance_beside_a_learned_sink_is_the_remaining_weight():
    map_ = torch.rand(1, H, N, N).tril()
    map_ *= torch.rand(1, H, N, 1) / map_.sum(-1, keepdim=True)
    recording = from_attentions([map_])
    remainder = map_[0].sum(-1)
    expected = (remainder / torch.arange(1, N + 1))[:, 1:].mean(-1)
    chance = torch.tensor([head.chance["previous"] for head in recording.heads()])
    torch.testing.assert_close(chance, expected, atol=1e-5, rtol=0)


def shuffled(maps, generator):
    """Shuffle the keys of each row within its causal mask."""
    for map_ in maps:
        for n, row in enumerate(map_):
            row[: n + 1] = row[torch.randperm(n + 1, generator=generator)]
    return maps


@pytest.mark.parametrize("length", [3, 6, 9, 15, 40])
def test_shuffled_heads_have_no_kind(length):
    """Heads with a single key per row have the highest scores by chance."""
    generator, many = torch.Generator().manual_seed(length), 144
    maps = torch.zeros(many, length, length)
    maps[:, :, 0] = 1
    heads = from_attentions([shuffled(maps, generator)[None]]).heads()
    scored = [h for h in heads if max(filter(None, h.scores.values()), default=0) >= MIN_SCORE]
    assert length > 15 or scored  # without regard to chance, they would have kinds
    assert {head.kind for head in heads} == {"-"}


def test_seven_tokens_suffice_for_a_head_that_always_attends_to_the_previous_one():
    for length, kind in ((5, "-"), (6, "-"), (7, "previous"), (30, "previous")):
        map_ = torch.eye(length).roll(-1, 1)
        map_[0] = torch.eye(length)[0]
        map_[1:, :] = torch.eye(length)[:-1]
        [head] = from_attentions([map_[None, None]]).heads()
        assert (head.previous, head.kind) == (1.0, kind)


def test_the_thresholds_of_kinds():
    assert kind_of({"sink": 1.0}, {"sink": 0.001}, {"sink": MIN_QUERIES}) == "sink"
    assert kind_of({"sink": 1.0}, {"sink": 0.001}, {"sink": MIN_QUERIES - 1}) == "-"
    assert kind_of({"sink": MIN_SCORE - 0.01}, {"sink": 0.001}, {"sink": 500}) == "-"
    assert (
        kind_of({"sink": None, "broad": 0.85}, {"sink": None, "broad": None}, {"broad": 9})
        == "broad"
    )
    assert kind_of({"broad": 0.79}, {"broad": None}, {"broad": 90}) == "-"
    both = {"local": 1.0, "self": 0.6}, {"local": 0.2, "self": 0.1}, {"local": 40, "self": 40}
    assert kind_of(*both) == "self"
    assert exceeds_chance(0.5, 0.0, 1)
    assert not exceeds_chance(1.0, 1.0, 10**6)
    # Q · log(1 / chance) must be log(ONCE_IN) for a mean of 1
    assert exceeds_chance(1.0, ONCE_IN ** (-1 / 7) - 1e-6, 7)
    assert not exceeds_chance(1.0, ONCE_IN ** (-1 / 7) + 1e-6, 7)


def test_refuted_heads_have_no_scores():
    recording = recorded("causal")
    recording[0].refutations[0] = "another text's"
    first, *_, last = recording.heads()
    assert (first.proof, first.kind, first.previous, first.queries["sink"]) == (
        "refuted",
        "-",
        None,
        0,
    )
    assert last.proof == "proved"


@pytest.mark.parametrize("way", ["tokenizer", "names"])
def test_unknown_tokens_are_not_duplicates(way, tmp_path):
    ids = torch.tensor([[5, 1, 6, 1, 7, 1, 5, 6, 1, 2]])
    words = ["[PAD]", "[UNK]", "a", "b", "c", "d", "e", "f", "g"]
    model = causal()[0].eval()

    class Words:
        special = {"unk": 1}  # noqa: RUF012

        def pieces(self, ids):
            return [words[i] for i in ids]

    with heedful.record(model, tokenizer=Words() if way == "tokenizer" else None) as recording:
        model(ids)
    if way == "names":
        recording.tokens = [[words[i] for i in ids[0].tolist()]]
    for each in (recording, heedful.load(recording.save(tmp_path / "r"))):
        map_, head = each[0].weights(head=0), each.heads()[0]
        expected = float((map_[6, 0] + map_[7, 2]) / 2)
        assert (head.duplicate, head.queries["duplicate"]) == (pytest.approx(expected, abs=1e-5), 2)
