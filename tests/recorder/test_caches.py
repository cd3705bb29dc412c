"""Tokens of calls with caches of transformers that grow, have empty slots, or hold a window."""

import pytest
import torch
import transformers
from transformers import DynamicCache, StaticCache

import heedful

ROOM, WINDOW = 12, 4
PASSES = [(6,), (4, 4), (5, 2, 1)]
PADS = {
    "before the text": [0, 3],
    "before one text": [3],
    "behind the first part": [0, 1],
    "behind the last part": [3],
}
# A window also counts padding inside a text; a single text has no padding
CASES = [
    (window, place) for window in (None, WINDOW) for place in PADS
    if (window, place) != (WINDOW, "behind the first part")
]  # fmt: skip


def built(window):
    config = transformers.MistralConfig(
        vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        sliding_window=window, pad_token_id=0,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).eval()


def real_tokens(pads, place, lengths):
    """Whether each slot holds a real token, (B, ROOM)."""
    places, pads = torch.arange(ROOM), torch.tensor(pads)[:, None]
    if place.startswith("before"):
        return places - pads >= 0
    part = 0 if "first" in place else -1
    end = sum(lengths) if part else lengths[0]
    pads = pads.clamp_max(lengths[part] - 1)
    return (places - (end - pads) < 0) | (places - end >= 0)


MASKS = {
    "so far": lambda real, end: real[:, :end],
    "zeros behind": lambda real, end: real & (end > torch.arange(ROOM)),
    "ones behind": lambda real, end: real,
}


def passes_of(model, cache, mask, ids, real, lengths):
    """One call for each part of the texts, with the keys of earlier parts."""
    places = (real.cumsum(1) - 1).clamp_min(0)
    start = 0
    with torch.no_grad(), heedful.record(model) as recording:
        for length in lengths:
            end = start + length
            model(
                ids[:, start:end], attention_mask=MASKS[mask](real, end).long(),
                position_ids=places[:, start:end], past_key_values=cache,
            )  # fmt: skip
            start = end
    assert recording.missed == {}
    return recording


def alone(model, ids):
    """The map (H, N, N) of a text without padding or cache, by the code of transformers."""
    eager = type(model)._from_config(model.config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        return eager(ids[None], output_attentions=True, use_cache=False).attentions[0][0]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["grows", "has room"])
@pytest.mark.parametrize(("window", "place"), CASES)
@pytest.mark.parametrize("lengths", PASSES)
def test_each_part_has_its_tokens_and_those_of_the_cache(lengths, window, place, kind, mask):
    model, pads = built(window), PADS[place]
    ids, real = torch.randint(1, 30, (len(pads), ROOM)), real_tokens(pads, place, lengths)
    ids[~real] = 0  # the vector of padding is zero
    cache = (
        StaticCache(model.config, ROOM) if kind == "has room" else DynamicCache(config=model.config)
    )
    recording = passes_of(model, cache, mask, ids, real, lengths)
    for text, is_real, calls in zip(ids, real, recording.sequences, strict=True):
        map_ = alone(model, text[: sum(lengths)][is_real[: sum(lengths)]])
        done = end = 0
        for call, length in zip(calls, lengths, strict=True):
            begin, end = end, end + int(is_real[done : done + length].sum())
            done += length
            H, N, M = call.shape
            assert (call.proof, N) == ("proved", end - begin)
            expected = map_[:, begin:end, max(0, end - M) : end]
            torch.testing.assert_close(expected.sum(-1), torch.ones(H, N))  # no real key is missing
            torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=1e-5)
