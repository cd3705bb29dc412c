"""Shares of segments, compared with sums of the maps of eager attention; errors and tables."""

import json

import numpy as np
import pytest
import torch
import transformers
from peaked_models import pair
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.generate import generate
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.recording import from_attentions
from heedful.recording.segment_masks import token_masks

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
MODELS = {
    "GPT2Model": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=512, **SMALL),
    "BertModel": transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        vocab_size=50),
    "GptOssForCausalLM": transformers.GptOssConfig(
        sliding_window=5, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, **SMALL),
}  # fmt: skip


def table(shares):
    """Return the shares by (layer, head, from, to)."""
    return {(row.layer, row.head, row.from_, row.to): row for row in shares}


def check(shares, maps, segments, allowed, atol=2e-5):
    """Compare every number with sums of full maps, a list of (H, N, M) by layer, in float64."""
    rows = table(shares)
    T = maps[0].shape[-1]
    tokens = {name: np.arange(T)[index] for name, index in segments.items()}
    rest = np.setdiff1d(np.arange(T), np.concatenate(list(tokens.values())))
    tokens |= {"rest": rest} if len(rest) else {}
    for layer, map_ in enumerate(maps):
        map_ = map_.double().numpy()
        for head, weights in enumerate(map_):
            for source, queries in tokens.items():
                for target, keys in tokens.items():
                    row = rows.pop((layer, head, source, target))
                    assert row.share == pytest.approx(
                        weights[np.ix_(queries, keys)].sum(1).mean(), abs=atol
                    )
                    is_allowed = allowed[layer][queries]
                    totals = weights[queries].sum(1)
                    chance = (is_allowed[:, keys].sum(1) / is_allowed.sum(1) * totals).mean()
                    assert row.chance == pytest.approx(chance, abs=atol)
                    assert (row.queries, row.keys) == (len(queries), len(keys))
                if (layer, head, source, "learned sink") in rows:
                    row = rows.pop((layer, head, source, "learned sink"))
                    assert row.share == pytest.approx(1 - weights[queries].sum(1).mean(), abs=atol)
                    assert row.chance is None
    assert not rows


@pytest.mark.parametrize("name", ["GPT2Model", "BertModel"])
def test_shares_equal_sums_of_eager_weights(name):
    model, eager = pair(name, MODELS[name])
    ids = torch.randint(3, 50, (1, 512), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), heedful.record(model) as recording:
        model(ids)
    with torch.inference_mode():
        maps = [item[0] for item in eager(ids, output_attentions=True).attentions]
    segments = {"system": slice(0, 41), "document": slice(41, 473), "odd": slice(473, 509, 2)}
    all_pairs = np.ones((512, 512), bool)
    allowed = np.tril(all_pairs) if name == "GPT2Model" else all_pairs
    check(recording.segments(segments), maps, segments, [allowed] * 2)


def test_windows_groups_and_learned_sinks():
    model, eager = pair("GptOssForCausalLM", MODELS["GptOssForCausalLM"], "eager")
    ids = torch.randint(3, 50, (1, 23))
    with torch.inference_mode(), heedful.record(model) as recording:
        model(ids)
        maps = [item[0] for item in eager(ids, output_attentions=True).attentions]
    segments = {"a": slice(0, 9), "b": slice(9, 20)}
    causal = np.tril(np.ones((23, 23), bool))
    window = causal & ~np.tril(causal, -5)
    shares = recording.segments(segments)
    check(shares, maps, segments, [window, causal])
    for row in shares:
        parts = [item.share for item in shares if item[:3] == row[:3]]
        assert sum(parts) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_text_of_a_batch_has_its_shares(side):
    model, eager = pair("BertModel", MODELS["BertModel"])
    texts = [torch.randint(3, 50, (length,)) for length in (13, 7)]
    ids, keep = torch.zeros(2, 13, dtype=torch.long), torch.zeros(2, 13, dtype=torch.long)
    for b, text in enumerate(texts):
        real = slice(0, len(text)) if side == "right" else slice(13 - len(text), None)
        ids[b, real], keep[b, real] = text, 1
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode(), heedful.record(model) as recording:
        model(ids, attention_mask=keep, position_ids=positions)
    segments = {"a": slice(0, 3), "b": slice(4, 6)}
    for b, text in enumerate(texts):
        with torch.inference_mode():
            maps = [item[0] for item in eager(text[None], output_attentions=True).attentions]
        allowed = np.ones((len(text), len(text)), bool)
        check(recording.sequences[b].segments(segments), maps, segments, [allowed] * 2)
    with pytest.raises(
        ArgumentError, match="the segment 'a': token index 7; expected numbers from -7 to"
    ):
        recording.sequences[1].segments({"a": range(5, 10)})


def test_a_generation_is_one_text():
    torch.manual_seed(3)
    model = GPT(GPTConfig(vocabulary=30, context_length=32, width=24, layers=2, heads=3)).eval()
    with heedful.record(model) as recording:
        generated_ids = list(generate(model, [4, 9, 2, 7, 7], tokens=8))
    text = torch.tensor([[4, 9, 2, 7, 7, *map(int, generated_ids[:-1])]])
    with torch.no_grad():
        maps = [steps.weights[0] for steps in model.steps(text)]
    segments = {"prompt": slice(0, 5), "output": slice(5, None)}
    shares = recording.segments(segments)
    T = text.shape[1]
    check(shares, maps, segments, [np.tril(np.ones((T, T), bool))] * 2)
    for call in recording.stitched():
        rows = [row[:7] for row in shares if row.name == call.name]
        assert [row[:7] for row in call.segments(segments)] == rows
    last = recording[-1]  # a pass with a cache: its only query is at the position of the last key
    assert last.shape[1:] == (1, T)
    assert {row.from_ for row in last.segments(segments)} == {"output"}


def test_an_encoder_decoder_has_segments_of_two_texts():
    torch.manual_seed(4)
    config = Seq2SeqConfig(vocabulary=30, context_length=16, width=24, layers=2, heads=3)
    model = Seq2Seq(config).eval()
    source, target = torch.randint(3, 30, (1, 11)), torch.randint(3, 30, (1, 6))
    with torch.inference_mode(), heedful.record(model) as recording:
        model(source, target)
    shares = recording.segments({"date": slice(0, 4)}, target={"year": range(1, 3)})
    cross = [row for row in shares if row.attention == "cross"]
    assert {(row.from_, row.to) for row in cross} == {
        (item, other) for item in ("year", "rest") for other in ("date", "rest")
    }
    calls = [call for call in recording if call.is_cross]
    for row in cross:
        map_ = next(call for call in calls if call.name == row.name).weights(row.head)
        queries = [1, 2] if row.from_ == "year" else [0, 3, 4, 5]
        keys = slice(0, 4) if row.to == "date" else slice(4, None)
        assert row.share == pytest.approx(float(map_[queries, keys].sum(-1).mean()), abs=1e-5)
        assert row.chance == pytest.approx(row.keys / 11)
    sides = {row.name: {row.from_ for row in shares if row.name == item.name}
             for item in shares for row in [item]}  # fmt: skip
    for call in recording:
        expected = {"year", "rest"} if call.is_cross or call.kind == "causal" else {"date", "rest"}
        assert sides[call.name] == expected
    shares = recording.segments({"date": slice(0, 4)})
    assert {row.from_ for row in shares if row.attention == "cross"} == {"target"}
    assert {row.from_ for row in calls[0].segments({"date": slice(0, 4)})} == {"all"}
    with pytest.raises(ArgumentError, match="no segment"):
        recording.segments({})


def small(tokens=None):
    recording = from_attentions([torch.rand(1, 2, 6, 6).softmax(-1) for _ in range(2)])
    recording.tokens = None if tokens is None else [tokens]
    return recording


def test_overlapping_segments_are_independent():
    recording = small()
    shares = table(recording.segments({"text": slice(0, 5), "name": [2, 3], "same": slice(0, 5)}))
    single = table(recording.segments({"name": [2, 3]}))
    for layer, head in np.ndindex(2, 2):
        key = (layer, head, "name", "name")
        assert shares[key].share == pytest.approx(single[key].share)
        assert shares[layer, head, "text", "same"][4:] == shares[layer, head, "text", "text"][4:]
    assert shares[0, 0, "text", "rest"].keys == 1


@pytest.mark.parametrize(
    "spec", [slice(1, 4), range(1, 4), [3, 1, 2, 2], [-5, -4, -3], (1, 2, 3), np.array([1, 2, 3]),
              torch.tensor([1, 2, 3]), [False, True, True, True, False, False], "bb-c d"],
)  # fmt: skip
def test_forms_of_a_segment(spec):
    masks = token_masks({"x": spec}, 6, ["a", "·bb", "-c", "·d", "·e", "."])
    assert masks["x"].nonzero()[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("labels", "text", "first", "end"),
    [
        (["The", "·cat", "·s", "at", "."], "cat sat", 1, 4),
        (["The", "·cat", "·s", "at", "."], " cat\nsat. ", 1, 5),
        (["The", "·cat", "·s", "at", "."], "he cat", 1, 2),  # no token begins with "he"
        (["The", "·cat", "·s", "at", "."], "cat s", 1, 3),
        (["The", "·cat", "·s", "at", "."], "cat sa", 1, 4),  # the last token begins inside
        (["▁The", "▁cat", "▁s", "at"], "The cat", 0, 2),
        (["[CLS]", "ang", "##strom", "[SEP]"], "Ångström", 1, 3),
        (["a", "↵", "↵", "b", "↵"], "a\n\nb\n", 0, 4),
        (["#", "·a", "##", "·b"], "a ## b", 1, 4),
        (["“", "<e2>", "<80><99>", "s"], "’s", 1, 4),  # a character in two tokens
        (["Cat", "·cat"], "cat", 1, 2),  # exact case has priority
    ],
)
def test_a_text_is_found_by_its_letters(labels, text, first, end):
    mask = token_masks({"x": text}, len(labels), labels)["x"]
    assert mask.nonzero()[:, 0].tolist() == list(range(first, end))


LABELS = ["The", "·cat", "·and", "·the", "·cat", "."]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ({"x": "dog"}, "'dog' occurs nowhere among the tokens"),
        ({"x": "cat"}, r"'cat' occurs 2 times, at the tokens \[1, 4\]"),
        ({"x": "nd t" * 40}, "…' occurs nowhere"),
        ({"x": "n"}, "'n' lies inside one token"),
        ({"x": " \n"}, "occurs nowhere"),
        ({"x": slice(6, 9)}, "the segment 'x' without a token; expected one or more of the 6"),
        ({"x": []}, "without a token"),
        ({"x": [6]}, "the segment 'x': token index 6; expected numbers from -6 to"),
        ({"x": [0.5]}, "the segment 'x': token indices"),
        ({"x": None}, "the segment 'x': token indices"),
        ({"x": [True, False]}, "a list of 6 booleans"),
        ({"rest": [0]}, "a segment named 'rest'; expected another name"),
        ({"learned sink": [0]}, "a segment named 'learned sink'"),
        ({"": [0]}, "a segment named ''"),
        ({1: [0]}, "expected a dictionary from names to tokens"),
        ([slice(0, 2)], "expected a dictionary from names to tokens"),
        ({}, "no segment; expected at least one"),
    ],
)
def test_invalid_segments_are_refused_in_one_line(segments, message):
    for method in (small(LABELS).segments, small(LABELS)[0].segments):
        with pytest.raises(ArgumentError, match=message) as raised:
            method(segments)
        assert "\n" not in str(raised.value)


def test_a_text_needs_names_and_a_target_needs_a_decoder():
    with pytest.raises(ArgumentError, match="expected a recording whose tokens have names"):
        small().segments({"x": "cat"})
    with pytest.raises(ArgumentError, match="target= for a model with one text"):
        small().segments({"x": [0]}, target={"y": [0]})


class TwoTowers(nn.Module):
    """Attention over six tokens, and then over nine."""

    def forward(self, x):
        for tokens in (x[:, :, :6], x):
            out = scaled_dot_product_attention(tokens, tokens, tokens)
        return out


def test_calls_on_other_tokens_are_listed_in_left_out():
    with heedful.record(model := TwoTowers()) as recording:
        model(torch.randn(1, 2, 9, 4))
    shares = recording.segments({"x": slice(0, 3)})
    assert {row.call for row in shares} == {1}
    assert shares.left_out == {"TwoTowers": "its 6 tokens are not the 9 of the text"}
    assert "TwoTowers is left out: its 6 tokens are not the 9" in str(shares)
    with heedful.record(model) as recording:
        model(torch.randn(1, 2, 9, 4))
        model(torch.randn(1, 2, 9, 4))
    with pytest.raises(RunError, match="2 passes that are not one generation"):
        recording.segments({"x": slice(0, 3)})
    with pytest.raises(RunError, match="nothing was recorded"):
        from_attentions([]).segments({"x": slice(0, 3)})


def test_fully_masked_rows_are_excluded_and_counted():
    map_ = torch.rand(1, 2, 5, 5).softmax(-1)
    map_[0, 1, :3] = 0.0
    rows = table(from_attentions([map_]).segments({"a": slice(0, 2), "b": slice(2, 5)}))
    masked = rows[0, 1, "a", "b"]
    assert (masked.queries, masked.share, masked.chance) == (0, None, None)
    assert rows[0, 1, "b", "a"].queries == 2
    assert rows[0, 1, "b", "a"].share == pytest.approx(float(map_[0, 1, 3:, :2].sum(-1).mean()))
    assert rows[0, 0, "b", "a"].queries == 3


def test_a_refuted_call_has_no_shares():
    recording = small()
    recording[0].refutations[0] = "it is not the model's"
    shares = recording.segments({"a": slice(0, 2)})
    assert {row.share is None for row in shares if row.call == shares[0].call} == {True}
    assert shares[0].proof == "refuted"
    assert shares[-1].share is not None
    with pytest.raises(RunError, match="was not recorded correctly"):
        recording[0].segments({"a": slice(0, 2)})


def test_the_mean_over_heads_the_table_and_json():
    recording = small(LABELS)
    shares = recording.segments({"a<b": slice(0, 2), "c": slice(2, 6)})
    mean = shares.over_heads()
    pairs = [(row.layer, row.from_, row.to) for row in mean]
    assert len(pairs) == len(set(pairs)) == len(shares) / 2
    for row in mean:
        key = (row.layer, row.from_, row.to)
        values = [item.share for item in shares if (item.layer, item.from_, item.to) == key]
        assert row.head is None
        assert row.share == pytest.approx(sum(values) / 2)
    first, *lines = str(shares).splitlines()
    assert first.split() == ["head", "from", "a<b", "c", "queries"]
    numbers = [f"{row.share:.2f}" for row in shares[:2]]
    assert lines[0].split() == ["0.0", "a<b", *numbers, "2"]
    assert [line.split() for line in lines[-2:]] == [
        ["chance", "a<b", "0.33", "0.67"], ["chance", "c", "0.33", "0.67"]
    ]  # fmt: skip
    assert str(mean).split()[0] == "layer"
    assert repr(shares) == "<Segments of 4 heads: a<b, c>"
    assert "a&lt;b" in shares._repr_html_()
    assert "a<b" not in shares._repr_html_()
    data = json.loads(shares.to_json())
    assert [row["from"] for row in data] == [row.from_ for row in shares]
    assert data[0]["share"] == shares[0].share


def test_masked_segments_are_a_dash():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=30, context_length=16, width=24, layers=1, heads=3)).eval()
    with torch.inference_mode(), heedful.record(model) as recording:
        model(torch.randint(30, (1, 9)))
    shares = recording.segments({"a": slice(0, 4), "b": slice(4, 9)})
    row = table(shares)[0, 0, "a", "b"]
    assert (row.share, row.chance) == (0.0, 0.0)
    assert str(shares).splitlines()[1].split() == ["0.0", "a", "1.00", "–", "4"]


def test_shares_report_progress_and_can_be_interrupted():
    recording, shares = small(), []
    recording.segments({"a": [0]}, progress=shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1.0

    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recording.segments({"a": [0]}, progress=stop)
    assert len(recording.segments({"a": [0]})) == 16
