"""Padding before a text, where only masks of queries and keys tell of it."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as some
from peaked import pair
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.ops.masks import Causal, Padding, Window
from heedful.recorder.observed import Observed, Real
from heedful.recorder.owners import padding_across_passes
from heedful.recorder.owners.padding_across_passes import so_far

transformers.logging.set_verbosity_error()
SIZE = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48}  # fmt: skip
NARROW = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
MODELS = {
    "LlamaForCausalLM": transformers.LlamaConfig(**SIZE),
    "MistralForCausalLM": transformers.MistralConfig(sliding_window=6, **SIZE),
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig(
        layer_types=["sliding_attention", "full_attention"], **NARROW, **SIZE),
    "Llama4ForCausalLM": transformers.Llama4TextConfig(
        attention_chunk_size=4, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
        intermediate_size_mlp=48, layer_types=["chunked_attention", "full_attention"], **SIZE),
}  # fmt: skip
LENGTHS, TOTAL, NEW = [4, 2, 7], 7, 5


def both(name):
    return pair(name, MODELS[name])


def prompts(lengths=LENGTHS):
    keep = Padding.from_lengths(lengths, max(lengths), "left").keep
    ids = torch.randint(3, 50, keep.shape, generator=torch.Generator().manual_seed(4))
    return ids.masked_fill(~keep, 0), keep


def generated(model, ids, keep, cache, **asked):
    """Recorded passes, and all that was read: prompts and the tokens made, but for the last."""
    asked = {"max_new_tokens": NEW, "do_sample": False, "cache_implementation": cache} | asked
    every = asked.pop("every", 1)
    with heedful.record(model, every=every) as recording:
        made = model.generate(ids, attention_mask=keep.long(), **asked)
    return recording, made[:, :-1]


def check(recording, eager, text, keep):
    """Each call is the part of eager's map of the text alone that its pass has made."""
    rest = text.shape[1] - keep.shape[1]
    for b, sequence in enumerate(recording.sequences):
        real = torch.cat([keep[b], torch.ones(rest, dtype=torch.bool)])
        maps = eager(text[b : b + 1, real], output_attentions=True).attentions
        done = {}
        for call in sequence:
            before, size = done.get(call.layer, 0), call.shape[1]
            done[call.layer] = before + size
            rows = maps[call.layer][0, :, before : before + size, : before + size].detach()
            hidden = rows.shape[2] - call.shape[2]
            assert hidden >= 0
            assert not bool(rows[..., :hidden].any())  # what a cache has forgotten
            expected = rows[..., hidden:]
            torch.testing.assert_close(call.weights(), expected, atol=3e-6, rtol=0)
            if size:
                after = expected[:, max(0, 1 - (expected.shape[2] - size)) :]  # with a choice
                torch.testing.assert_close(
                    call.sink(), after[:, :, 0].mean(1), atol=3e-6, rtol=0, equal_nan=True
                )
        assert set(done.values()) == {int(real.sum())}


@pytest.mark.parametrize("lengths", [LENGTHS, [3], [5, 5]], ids=str)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_each_pass_of_a_generation_is_that_of_the_text_alone(name, cache, lengths):
    model, eager = both(name)
    ids, keep = prompts(lengths)
    recording, text = generated(model, ids, keep, cache)
    check(recording, eager, text, keep)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_chunks_of_which_one_text_has_padding_alone(name, cache):
    model, eager = both(name)
    ids, keep = prompts()
    recording, text = generated(model, ids, keep, cache, prefill_chunk_size=3)
    check(recording, eager, text, keep)


@pytest.mark.parametrize("every", [1, 2, 4])
def test_of_two_generations_what_recorded_passes_tell(every):
    """Without its first pass a generation's padding is left where it is."""
    model, _ = both("LlamaForCausalLM")
    with heedful.record(model, every=every) as recording:
        for lengths in ([4, 2, 7], [6, 7, 3]):
            ids, keep = prompts(lengths)
            asked = {"max_new_tokens": NEW, "do_sample": False, "cache_implementation": "static"}
            model.generate(ids, attention_mask=keep.long(), **asked)
    found = {
        calls[0].pass_index: [call.shape[2] for call in calls]
        for calls in zip(*recording.sequences, strict=True)
    }
    first = [[length + step for length in (4, 2, 7)] for step in range(NEW)]
    second = [[length + step for length in (6, 7, 3)] for step in range(NEW)]
    if every > 1:
        second = [[TOTAL + step] * 3 for step in range(NEW)]
    expected = dict(list(enumerate(first + second))[::every])
    assert found == expected


def test_a_mask_is_looked_at_in_runs_of_rows(monkeypatch):
    monkeypatch.setattr(padding_across_passes, "ENTRIES", 3 * 4 * 24)
    test_a_prompt_in_chunks_of_which_one_text_has_padding_alone("LlamaForCausalLM", "static")


class Attends(nn.Module):
    def forward(self, query, key, mask):
        return scaled_dot_product_attention(query, key, key, attn_mask=mask)


def test_what_cannot_be_told_is_left_as_it_is():
    x, H, M = torch.randn(2, 3, 7, 4), 3, 7
    keep = Padding.from_lengths([7, 4], M, "left")
    masks = {
        "one query, whose passes before nobody saw": (1, Causal() & keep),
        "two, of a window": (2, Causal() & Window(3)),
        "queries that all look at the text": (7, keep),
        "nobody sees anything": (7, Padding(torch.zeros(2, M, dtype=torch.bool))),
    }
    for n, mask in masks.values():
        with heedful.record(model := Attends()) as recording:
            model(x[:, :, -n:], x, mask.crop((2, H, n, M)))
        assert [one.shape for [one] in recording.sequences] == [(H, n, M)] * 2


def seen(mask, N, M, B=2, *, cross=False):
    empty = torch.zeros(())
    return Observed(empty.expand(B, 3, N, 4), empty.expand(B, 3, M, 4), None, None, 1.0, mask=mask,
                cross=cross)  # fmt: skip


def test_keys_of_another_text_are_padding_where_all_queries_agree():
    keep = torch.tensor([[False, False, True, True, True], [True] * 5])
    mask = keep[:, None, None].expand(2, 1, 3, 5)
    real, now = so_far(seen(mask, 3, 5, cross=True), Real(), None, 0)
    assert torch.equal(real.keys, keep)
    assert real.queries is None
    assert now is None
    one = so_far(seen(mask[:, :, :1], 1, 5, cross=True), Real(), None, 0)
    moving = mask & Window(2, 2).crop((3, 5))
    for left in (one, so_far(seen(moving, 3, 5, cross=True), Real(), None, 0)):
        assert left == (Real(), None)


def test_what_was_told_holds():
    told = Real(torch.ones(2, 5, dtype=torch.bool))
    mask = Causal() & Padding.from_lengths([5, 3], 5, "left")
    assert so_far(seen(mask, 5, 5), told, None, 0) == (told, None)


@some.composite
def passes(draw):
    """A text in passes: its padding, what hides keys besides, and what its cache has."""
    padding = draw(some.lists(some.integers(0, 6), min_size=1, max_size=3))
    sizes = draw(some.lists(some.integers(1, 4), min_size=1, max_size=5))
    sizes = [draw(some.integers(min(padding) + 1, 9)), *sizes]  # somebody sees something at once
    total = sum(sizes)
    window = draw(some.integers(2, total + 1))
    kind = draw(some.sampled_from(["causal", "window", "documents", "forgets"]))
    room = draw(some.integers(0, 3)) if kind != "forgets" else 0
    return torch.tensor(padding), sizes, kind, window, room


def allowed(padding, total, kind, window):
    """(B, T, T), by definition."""
    query, key = torch.arange(total)[:, None], torch.arange(total)
    table = key <= query
    if kind in ("window", "forgets"):
        table &= query - key < window
    if kind == "documents":
        table &= query // window == key // window
    return table & (key >= padding[:, None, None]) & (query >= padding[:, None, None])


@given(passes())
def test_it_is_the_padding_of_the_text_in_every_pass(drawn):
    before_text, sizes, kind, window, room = drawn
    total, done, before = sum(sizes), 0, None
    whole = allowed(before_text, total, kind, window)
    for forward, N in enumerate(sizes):
        done += N
        held = done if kind != "forgets" else min(done, max(N, window))
        M = total + room if room else held
        gone = max(0, done - M)
        table = torch.nn.functional.pad(whole, (0, room))[:, done - N : done, gone : gone + M]
        real, before = so_far(seen(table[:, None], N, M, len(before_text)), Real(), before, forward)
        key, query = torch.arange(gone, gone + M), torch.arange(done - N, done)
        if real.keys is None:
            assert not bool((before_text > gone).any())
            continue
        assert torch.equal(real.keys, (key >= before_text[:, None]) & (key < done))
        assert torch.equal(real.queries, query >= before_text[:, None])
