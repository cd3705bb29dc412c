"""Faults that weights × values does not detect (exchanged texts and heads), and some it does."""

from dataclasses import replace

import pytest
import torch
import transformers
from shown_maps import WIDTH, B, Given, H, Heads, N, near
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import RunError
from heedful.recording import certificate

D = 4


def weighed(query, key, scale=1.0):
    return (query.double() @ key.double().mT * scale).softmax(-1).float()


def shows(recording, maps):
    """Check the map of each text or part."""
    calls = [part for [call] in recording.sequences for part in call.parts]
    assert len(calls) == len(maps)
    for call, map_ in zip(calls, maps, strict=True):
        near(call.weights(), map_)


def attends(query):
    return scaled_dot_product_attention(query, query, query)


def test_heads_before_texts_in_one_axis_are_exact_with_axes():
    x = torch.randn(H * B, N, D)
    beside = torch.zeros(B, 3, 7, dtype=torch.long)  # the ids determine the number of texts
    model = Given(lambda x, other: attends(other))
    with heedful.record(model, axes={"Given": "(h b) n d"}) as recording:
        model(beside, x)
    shows(recording, weighed(x, x, D**-0.5).unflatten(0, (H, B)).transpose(0, 1))
    assert (recording[0].proof, recording[0].layout) == ("proved", "told")


def test_einsums_of_windows_are_parts_of_their_texts():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(H * D, 3 * H * D)

        def forward(self, x):
            result = self.project(x).unflatten(-1, (3 * H, D)).permute(3, 0, 1, 2, 4)
            q, k, v = result.chunk(3, dim=0)  # (H, B, windows, N, D)
            weights = torch.einsum("hbwpc,hbwqc->hbwpq", q, k).softmax(-1)
            return torch.einsum("hbwij,hbwjc->hbwic", weights, v)

    model, x = Windows(), torch.randn(B, 6, N, H * D)
    q, k, _ = model.project(x).unflatten(-1, (3, H, D)).permute(3, 0, 1, 4, 2, 5)
    with heedful.record(model) as recording:
        model(x)
    assert recording.verify(model, x) == {"verified": 1}
    assert len(recording.sequences) == B
    shows(recording, weighed(q, k).flatten(0, 1).detach())


def test_texts_of_a_dictionary_are_counted():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(H * D, H * D)

        def heads(self, x):
            return self.project(x).unflatten(-1, (H, D)).transpose(1, 2)

        def forward(self, batch):
            return attends(self.heads(batch["x"]).flatten(0, 1))

    model, x = Reads(), torch.randn(B, N, H * D)
    with heedful.record(model) as recording:
        model({"x": x})
    shows(recording, weighed(model.heads(x), model.heads(x), D**-0.5).detach())
    assert recording[0].layout == "usual"


def test_a_layer_without_the_interface_is_recorded_with_its_number():
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaModel(config).eval()

    class ByHand(nn.Module):
        """Replaces the attention of a layer."""

        def __init__(self, before):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
                before.q_proj, before.k_proj, before.v_proj, before.o_proj,
            )  # fmt: skip

        def forward(self, hidden_states, **keywords):
            q, k, v = (
                layer(hidden_states).unflatten(-1, (-1, 8)).transpose(1, 2)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            k, v = (side.repeat_interleave(2, dim=1) for side in (k, v))
            hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
            scores = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf)
            self.map = scores.softmax(-1)
            return self.o_proj((self.map @ v).transpose(1, 2).flatten(2)), None

    model.layers[1].self_attn = ByHand(model.layers[1].self_attn)
    ids = torch.randint(30, (1, N))
    with torch.no_grad():
        before = model(ids)[0]
        with heedful.record(model) as recording:
            after = model(ids)[0]
    assert torch.equal(before, after)
    assert [(call.layer, call.proof) for call in recording] == [(i, "proved") for i in range(3)]
    assert [call.layout for call in recording] == ["told", "usual", "told"]
    near(recording[1].weights(), model.layers[1].self_attn.map[0])


def test_the_check_detects_a_missing_bias_on_a_head_with_small_values():
    """In bfloat16, beside heads with outputs thirty times as large."""
    q, k, v = torch.randn(3, B, H, 16, 8, dtype=torch.bfloat16)
    v = v.clone()
    v[:, 1] *= 0.03
    bias = torch.zeros(1, H, 16, 16)
    bias[:, 1] = torch.randn(16, 16) * 2
    with heedful.record(model := Given(scaled_dot_product_attention)) as recording:
        model(q, k, v, bias.to(q.dtype))
    [capture] = recording._captures
    evidence = replace(capture.check_source)
    assert recording[0].check.passed
    capture.bias = None  # as if the door had missed it
    causes = [capture.inputs(text) for text in range(B)]
    check, _ = certificate.certify(causes, capture.tokens, evidence)
    assert not check.passed
    assert "head 1" in check.where
    capture.check_source = check
    recording._calls.clear()
    assert recording[0].proof == "refuted"
    with pytest.raises(RunError, match="head 1 of sequence"):
        recording[0].weights()


def attended(query, key):
    return (query @ key.mT).softmax(-1) @ key


@pytest.mark.filterwarnings("ignore:attention of Heads was not recorded")
@pytest.mark.parametrize("does", [attended, lambda q, k: scaled_dot_product_attention(q, k, k)])
def test_a_missing_head_is_reported(does):
    with heedful.record(model := Heads(does), heads=[99]) as recording:
        model(torch.randn(1, N, WIDTH))
    assert recording.missed == {"Heads": "head 99 of Heads; expected heads from 0 to 2"}


def test_a_backward_pass_is_possible_after_verify():
    class Normed(Heads):
        def __init__(self):
            super().__init__(attended)
            self.norm = nn.BatchNorm1d(N)

        def forward(self, x):
            return super().forward(self.norm(x))

    model, x = Normed().eval(), torch.randn(B, N, WIDTH)
    with heedful.record(model) as recording:
        loss = model(x).sum()
    assert recording.verify(model, x) == {"verified": 1}
    loss.backward()
    assert model.asks.weight.grad.abs().sum() > 0
