from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, TextError
from heedful.generate import Reader, Sampling, TextStream, beginning, generate, window_start
from heedful.models import GPT, GPTConfig

GREEDY = Sampling(temperature=0.0)


def tiny(**changes):
    shape = {"vocabulary": 29, "context_length": 8, "width": 12, "layers": 2, "heads": 3}
    torch.manual_seed(5)
    return GPT(GPTConfig(**{**shape, **changes})).eval()


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
@pytest.mark.parametrize("context", [1, 2, 7, 8])
def test_with_the_cache_and_without_it_greedy_tokens_are_the_same(positions, context):
    """24 tokens, far past the context: the window moves in the same way in both cases."""
    model = tiny(positions=positions, context_length=context)
    prompt = [3, 1, 4, 1, 5]
    cached = [int(t) for t in generate(model, prompt, tokens=24, sampling=GREEDY)]
    plain = [int(t) for t in generate(model, prompt, tokens=24, sampling=GREEDY, cache=False)]
    assert cached == plain
    assert len(cached) == 24


def test_greedy_takes_the_largest_logit_of_the_last_window():
    model = tiny()
    ids = [7, 7, 2]
    for token in generate(model, ids, tokens=20, sampling=GREEDY):
        window = torch.tensor([ids[window_start(len(ids), 8) :]])
        assert int(token) == int(model(window).logits[0, -1].argmax())
        ids.append(int(token))


@given(st.integers(1, 300), st.integers(1, 40))
@settings(max_examples=100)
def test_the_window_fits_and_keeps_at_least_half_a_context(length, context):
    start = window_start(length, context)
    visible = length - start
    assert 1 <= visible <= context
    assert start == 0 or visible > context - max(1, context // 2)
    assert window_start(length + 1, context) >= start


def test_several_samples_at_once_differ_and_a_seed_repeats_them():
    model = tiny()

    def draw(seed):
        steps = generate(model, [1, 2], tokens=12, samples=3, seed=seed)
        return torch.stack(list(steps)).T.tolist()

    first = draw(7)
    assert first == draw(7)
    assert first != draw(8)
    assert len({tuple(sample) for sample in first}) == 3


def test_samples_of_a_batch_each_follow_their_own_text():
    """Each sample's probabilities are those of its own tokens."""
    model = tiny()
    reader, ids = Reader(model, 3), torch.tensor([[1, 2]]).repeat(3, 1)
    for chosen in generate(model, [1, 2], tokens=15, samples=3, seed=3):
        together = reader.logits(ids)
        for row in range(3):
            separate = Reader(model, 1, cached=False).logits(ids[row : row + 1])
            torch.testing.assert_close(together[row : row + 1], separate, atol=1e-5, rtol=0)
        ids = torch.cat([ids, chosen[:, None]], dim=1)


@st.composite
def distributions(draw):
    seed = draw(st.integers(0, 1000))
    rows, size = draw(st.integers(1, 3)), draw(st.integers(2, 17))
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, size)) * 3, generator.integers(0, size, (rows, 5))


@given(
    distributions(),
    st.floats(0.1, 3.0),
    st.integers(0, 20),
    st.floats(0.01, 1.0),
    st.floats(1.0, 2.0),
)
@settings(max_examples=80)
def test_probabilities_equal_numpy(case, temperature, top_k, top_p, penalty):
    logits, before = case
    expected = np.zeros_like(logits)
    for row, (values, tokens) in enumerate(zip(logits.copy(), before, strict=True)):
        for token in set(tokens.tolist()):
            values[token] = (
                values[token] / penalty if values[token] > 0 else values[token] * penalty
            )
        likely = np.exp(values / temperature - (values / temperature).max())
        order = np.argsort(-likely)
        likely[order[top_k or len(order) :]] = 0
        likely /= likely.sum()
        total, nucleus = 0.0, []
        for token in order:
            if nucleus and total >= top_p:
                break
            nucleus.append(token)
            total += likely[token]
        expected[row, nucleus] = likely[nucleus] / likely[nucleus].sum()
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty
    )
    result = sampling.probabilities(torch.tensor(logits), torch.tensor(before))
    np.testing.assert_allclose(result.numpy(), expected, atol=2e-6)


class Bytes:
    def token_bytes(self, token):
        return bytes([token])


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=2))
@settings(max_examples=100)
def test_a_stream_shows_the_text_up_to_the_first_stop_text(text, stop):
    stream = TextStream(Bytes(), stop)
    pieces = [stream.push(byte) for byte in text.encode()]
    streamed = "".join(pieces) + stream.close()
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(word) for word in stop)]
    if ends:
        cut = min(text[: ends[0]].rfind(w) for w in stop if text[: ends[0]].endswith(w))
        assert streamed == text[:cut]
        assert stream.stopped
    else:
        assert streamed == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    cut = TextStream(Bytes())  # a character that is never completed
    assert [cut.push(byte) for byte in "🙂".encode()[:2]] == ["", ""]
    assert cut.close() == "\ufffd"


def test_wrong_usage():
    with pytest.raises(ArgumentError, match="empty prompt"):
        generate(tiny(), [], tokens=3)
    with pytest.raises(ArgumentError, match="top_p = 2"):
        Sampling(top_p=2)


@pytest.mark.parametrize(
    ("letters", "first", "special", "expected"),
    [
        ("ab", (5, 6), {"bos": 7}, [5, 6]),
        ("ab", (), {"eos": 8, "bos": 7}, [7]),
        ("ab", (), {"eos": 8, "unk": 3}, [8]),
        ("ab \n", (), {}, [3]),
        ("ab ", (), {}, [2]),
        ("ab", (), {}, [0]),
    ],
)
def test_a_text_without_a_prompt_starts_with_special_tokens(letters, first, special, expected):
    def encode(text):
        if text not in letters:
            raise TextError(text)
        return [letters.index(text)]

    assert beginning(SimpleNamespace(prefix_ids=first, special=special, encode=encode)) == expected


def test_a_temperature_near_zero_is_greedy_and_ties_do_not_widen_the_top():
    logits, before = torch.tensor([[1.0, 3.0, 2.0, 3.0]]), torch.zeros(1, 1, dtype=torch.long)
    assert Sampling(temperature=1e-40).probabilities(logits, before).isfinite().all()
    assert (Sampling(top_k=1).probabilities(logits, before) > 0).sum() == 1
