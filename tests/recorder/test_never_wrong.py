"""What a certificate of weights times values cannot see: texts and heads that change places."""

import pytest
import torch
import transformers
from looked import Given
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import RunError
from heedful.recorder.observed import Observed
from heedful.recording import certificate
from heedful.recording.evidence import evidence_of

B, H, N, D = 2, 3, 5, 4


def weighed(query, key, scale=1.0):
    return (query.double() @ key.double().mT * scale).softmax(-1).float()


def shows(recording, maps):
    assert len(recording.sequences) == len(maps)
    for [call], map_ in zip(recording.sequences, maps, strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=0)


def attends(query):
    return scaled_dot_product_attention(query, query, query)


def test_heads_before_texts_in_one_axis_are_assumed_and_exact_where_told():
    x = torch.randn(H * B, N, D)
    maps = weighed(x, x, D**-0.5).unflatten(0, (H, B)).transpose(0, 1)
    beside = torch.zeros(B, 3, 7, dtype=torch.long)  # which tells of how many texts it is
    model = Given(lambda x, other: attends(x))
    with heedful.record(model) as guessed:
        model(x, beside)
    assert guessed[0].proof == "assumed"
    model = Given(lambda x, other: attends(other))
    with heedful.record(model, axes={"Given": "(h b) n d"}) as told:
        model(beside, x)
    shows(told, maps)
    assert told[0].proof == "proved"


TOLD = {
    "windows": ((B, H, 6, N, D), "b h w n d", lambda m: m.transpose(1, 2).flatten(0, 1)),
    "heads first": ((H, B, N, D), "h b n d", lambda m: m.transpose(0, 1)),
}


@pytest.mark.parametrize("way", TOLD)
def test_axes_of_tensors_that_no_product_made(way):
    shape, axes, arranged = TOLD[way]
    x, model = torch.randn(shape), Given(attends)
    with heedful.record(model) as guessed:
        model(x)
    assert guessed[0].proof == "assumed"
    assert "by their places and sizes" in guessed[0].why
    with heedful.record(model, axes={"*": axes}) as told:
        model(x)
    shows(told, arranged(weighed(x, x, D**-0.5)))


def test_einsums_of_windows_are_sequences_those_of_the_first_text_first():
    project = nn.Linear(H * D, 3 * H * D)

    def windows(x):
        q, k, v = project(x).unflatten(-1, (3 * H, D)).permute(3, 0, 1, 2, 4).chunk(3, dim=0)
        weights = torch.einsum("hbwpc,hbwqc->hbwpq", q, k).softmax(-1)
        return torch.einsum("hbwij,hbwjc->hbwic", weights, v)

    model, x = Given(windows), torch.randn(B, 6, N, H * D)
    model.project = project
    q, k, _ = project(x).unflatten(-1, (3, H, D)).permute(3, 0, 1, 4, 2, 5)
    with heedful.record(model) as recording:
        model(x)
    shows(recording, weighed(q, k).flatten(0, 1).detach())
    assert recording[0].proof == "assumed"
    assert recording.verify(model, x) == {"proved": 1}


def test_texts_of_a_dictionary_are_counted():
    project = nn.Linear(H * D, H * D)

    def attend(batch):
        x = batch["x"]
        heads = project(x).unflatten(-1, (H, D)).transpose(1, 2).flatten(0, 1)
        return attends(heads)

    model, x = Given(attend), torch.randn(B, N, H * D)
    model.project = project
    heads = project(x).unflatten(-1, (H, D)).transpose(1, 2)
    with heedful.record(model) as recording:
        model({"x": x})
    shows(recording, weighed(heads, heads, D**-0.5).detach())
    assert recording[0].proof == "assumed"


def test_a_layer_that_does_not_use_the_interface_is_seen_and_keeps_its_number():
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaModel(config).eval()

    class ByHand(nn.Module):
        """In the place of a layer's attention."""

        def __init__(self, before):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
                before.q_proj, before.k_proj, before.v_proj, before.o_proj,
            )  # fmt: skip

        def forward(self, hidden_states, **told):
            q, k, v = (
                made(hidden_states).unflatten(-1, (-1, 8)).transpose(1, 2)
                for made in (self.q_proj, self.k_proj, self.v_proj)
            )
            k, v = (one.repeat_interleave(2, dim=1) for one in (k, v))
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
    torch.testing.assert_close(
        recording[1].weights(), model.layers[1].self_attn.map[0], atol=2e-6, rtol=0
    )
    assert recording[1].causes.key.shape[0] == 2


def test_a_bias_that_nobody_saw_is_found_on_a_head_whose_values_are_small():
    """In bfloat16 and beside heads whose output is thirty times as large."""
    q, k, v = torch.randn(3, B, H, 16, 8, dtype=torch.bfloat16)
    v = v.clone()
    v[:, 1] *= 0.03
    bias = torch.zeros(H, 16, 16)
    bias[1] = torch.randn(16, 16) * 2
    with heedful.record(model := Given(scaled_dot_product_attention)) as recording:
        model(q, k, v, bias.to(q.dtype))
    assert recording[0].check.passed
    capture = recording._captures[0]
    capture.bias = None  # as if it had not been seen
    output = scaled_dot_product_attention(q, k, v, bias.to(q.dtype))
    causes = [capture.causes(sequence) for sequence in range(B)]
    seen = Observed(q, k, v, output, 8**-0.5)
    evidence = evidence_of(seen, capture.layouts, q.dtype)
    check, _ = certificate.certify(causes, capture.layouts, evidence)
    assert not check.passed
    assert "head 1" in check.where
    capture.checked = check
    recording._calls.clear()
    assert recording[0].proof == "refuted"
    with pytest.raises(RunError, match="head 1 of sequence"):
        recording[0].weights()
    assert len(recording) == 1


def test_heads_that_are_put_together_after_their_products_are_no_windows():
    made = nn.ModuleList(nn.Linear(H * D, 2 * D) for _ in range(6))

    def attend(x):
        q, k, v = (
            torch.stack([one(x), other(x)], 1).unflatten(-1, (2, D)).transpose(2, 3).flatten(1, 2)
            for one, other in zip(made[::2], made[1::2], strict=True)
        )
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    model, x = Given(attend), torch.randn(1, N, H * D)
    model.made = made
    with heedful.record(model) as recording:
        _, weights = model(x)
    assert recording[0].proof == "assumed"
    torch.testing.assert_close(recording[0].weights(), weights[0].detach(), atol=2e-6, rtol=0)


def test_what_is_asked_for_in_vain_is_an_error_of_every_door():
    model = Given(lambda x: (x @ x.mT).softmax(-1) @ x)
    with (
        pytest.raises(heedful.errors.ArgumentError, match="head 99"),
        heedful.record(model, heads=[99]),
    ):
        model(torch.randn(1, H, N, D))


def test_a_verified_pass_can_still_go_backward():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.project = nn.BatchNorm1d(N), nn.Linear(H * D, H * D)

        def forward(self, x):
            return attends(self.project(self.norm(x)).unflatten(-1, (H, D)).transpose(1, 2))

    model, x = Normed().eval(), torch.randn(B, N, H * D)
    with heedful.record(model) as recording:
        loss = model(x).sum()
    assert recording.verify(model, x) == {"proved": 1}
    loss.backward()
    assert model.project.weight.grad.abs().sum() > 0


def test_heads_that_share_a_product_after_their_split_are_no_windows():
    """As some tutorials have it: one layer for the width of a head."""
    first, shared = nn.Linear(H * D, H * D), nn.Linear(D, D)

    def attend(x):
        q = shared(first(x).unflatten(-1, (H, D))).transpose(1, 2)
        weights = (q @ q.mT).softmax(-1)
        return weights @ q, weights

    model, x = Given(attend), torch.randn(1, N, H * D)
    model.first, model.shared = first, shared
    with heedful.record(model) as recording:
        _, weights = model(x)
    assert recording[0].proof == "assumed"
    torch.testing.assert_close(recording[0].weights(), weights[0].detach(), atol=2e-6, rtol=0)
