"""Tables of values, and the learned numbers of the residual stream, in a GPT."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import heedful
from heedful.explain import explain_gpt
from heedful.layers import ResidualScalars, ValueEmbeddings
from heedful.models import GPT, GPTConfig

SHAPE = {"vocabulary": 23, "context_length": 16, "width": 24, "layers": 3, "heads": 4}
BOTH = {"value_embeddings": True, "residual_scalars": True}


def model(**choices):
    found = GPT(GPTConfig(**SHAPE, **choices)).double().eval()
    for parameter in found.parameters():
        if parameter.ndim < 2 or parameter.count_nonzero() == 0:
            nn.init.normal_(parameter)
    return found


def by_hand(gpt, ids):
    """The states after each block, each text and head by itself, in NumPy."""
    weights = {name: tensor.numpy() for name, tensor in gpt.state_dict().items()}
    config, states = gpt.config, []
    heads, groups, d = config.heads, config.kv_heads or config.heads, config.width_of_heads
    table = weights["values.table"].reshape(-1, config.layers, groups, d)
    first = x = weights["tokens.weight"][ids] + weights["positions"][: ids.shape[1]]
    for i in range(config.layers):
        x = weights["scalars.stream"][i] * x + weights["scalars.first"][i] * first
        block, context = f"blocks.{i}.", np.zeros((*ids.shape, heads, d))
        joined = normed(x, weights[f"{block}attend_norm.weight"])
        joined = joined @ weights[f"{block}attend.projection.weight"].T
        parts = np.split(joined, [heads * d, (heads + groups) * d], axis=-1)
        query, key, value = (part.reshape(*ids.shape, -1, d) for part in parts)
        value = value + table[ids, i]
        for text, head, n in np.ndindex(len(ids), heads, ids.shape[1]):
            of = head // (heads // groups)
            scores = np.exp(key[text, : n + 1, of] @ query[text, n, head] / np.sqrt(d))
            context[text, n, head] = scores / scores.sum() @ value[text, : n + 1, of]
        context = context.reshape(*ids.shape, -1)
        x = x + context @ weights[f"{block}attend.output.weight"].T
        inner = normed(x, weights[f"{block}feed_norm.weight"])
        inner = np.maximum(inner @ weights[f"{block}feed.enter.weight"].T, 0) ** 2
        x = x + inner @ weights[f"{block}feed.output.weight"].T
        states.append(x)
    states[-1] = normed(x, weights["norm.weight"])
    return states


def normed(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_a_gpt_with_both_is_that_of_numpy(groups):
    torch.manual_seed(groups)
    gpt = model(**BOTH, kv_heads=groups, positions="learned", qk_norm=False)
    ids = torch.randint(23, (2, 9))
    with torch.no_grad():
        states = gpt.hidden_states(ids)[1:]
    expected = by_hand(gpt, ids.numpy())
    for mine, other in zip(states, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-10)


@pytest.mark.parametrize("choice", BOTH)
def test_a_model_begins_as_if_it_had_none(choice):
    torch.manual_seed(3)
    plain = GPT(GPTConfig(**SHAPE))
    torch.manual_seed(3)
    other = GPT(GPTConfig(**SHAPE, **{choice: True}))
    ids = torch.randint(23, (2, 7))
    torch.testing.assert_close(plain(ids).logits, other(ids).logits, atol=0, rtol=0)
    F.cross_entropy(other(ids).logits.flatten(0, 1), torch.arange(14)).backward()
    assert all(parameter.grad.count_nonzero() for parameter in other.parameters())


def test_they_train_in_bfloat16():
    torch.manual_seed(5)
    gpt, ids = GPT(GPTConfig(**SHAPE, **BOTH)), torch.randint(23, (2, 7))
    with torch.autocast("cpu", torch.bfloat16):
        logits = gpt(ids).logits
    F.cross_entropy(logits.float().flatten(0, 1), ids.flatten()).backward()
    for part in (gpt.values, gpt.scalars):
        assert all(one.grad.dtype == torch.float32 for one in part.parameters())


def test_their_gradients_are_those_of_finite_differences():
    scalars, values = ResidualScalars(2).double(), ValueEmbeddings(5, 3, 2).double()
    x, first = (torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    given = (x, first, *scalars.parameters())
    assert torch.autograd.gradcheck(lambda x, first, *_: scalars(x, first, 1), given)
    ids = torch.tensor([[0, 3, 3]])
    assert torch.autograd.gradcheck(lambda *_: values(ids)[1], tuple(values.parameters()))


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_cache_and_padding_change_nothing(order):
    torch.manual_seed(0)
    gpt, ids = model(**BOTH, norm_order=order), torch.randint(23, (2, 9))
    with torch.no_grad():
        whole, cache = gpt(ids).logits, gpt.new_cache(2)
        pieces = [gpt(part, cache=cache).logits for part in ids.split([4, 1, 4], 1)]
        padded = torch.cat([torch.randint(23, (2, 2)), ids], 1)
        keep = torch.arange(11).expand(2, -1) >= 2
        kept = gpt(padded, keep=keep).logits[:, 2:]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-10, rtol=0)
    torch.testing.assert_close(kept, whole, atol=1e-10, rtol=0)


def test_its_maps_are_recorded_and_proved():
    torch.manual_seed(1)
    gpt, ids = model(**BOTH, kv_heads=2), torch.randint(23, (1, 9))
    with heedful.record(gpt) as recording, torch.no_grad():
        gpt(ids)
    for call, steps in zip(recording, gpt.steps(ids), strict=True):
        assert call.proof == "proved"
        for head in range(4):
            torch.testing.assert_close(call.weights(head=head), steps.weights[0, head])


@pytest.mark.parametrize("layer", [0, 2])
def test_their_numbers_are_explained(layer):
    torch.manual_seed(2)
    gpt, ids = model(**BOTH, kv_heads=2).float().requires_grad_(False), torch.tensor([[4, 9, 1, 7]])
    walk = explain_gpt(gpt, ids, pieces=lambda ids: [f"<{id}>" for id in ids], layer=layer)
    stages = {stage.name: stage for section in walk.sections for stage in section.stages}
    states = gpt.hidden_states(ids)
    before, first = states[layer][0], states[0][0]
    stream, again = float(gpt.scalars.stream[layer]), float(gpt.scalars.first[layer])
    expected = stream * before + again * first
    torch.testing.assert_close(stages["weighed"].numbers(), expected, atol=1e-5, rtol=0)
    told = stages["weighed"].how(0, 2, 5)
    wanted = [stream, float(before[2, 5]), again, float(first[2, 5])]
    np.testing.assert_allclose(told.numbers, wanted, rtol=1e-5)
    value, steps = stages["added value"], list(gpt.steps(ids))[layer]
    context = steps.weights[0] @ value.numbers().repeat_interleave(2, 0)
    torch.testing.assert_close(context, steps.context[0], atol=1e-5, rtol=0)
    assert sum(value.how(1, 3, 2).numbers) == pytest.approx(float(value.numbers()[1, 3, 2]))


def test_a_block_that_is_not_opened_is_told_by_what_it_read():
    torch.manual_seed(4)
    gpt, ids = model(**BOTH).float().requires_grad_(False), torch.tensor([[4, 9, 1, 7]])
    walk = explain_gpt(gpt, ids, pieces=lambda ids: [f"<{id}>" for id in ids], layer=0)
    first, _, made, _ = (state[0] for state in gpt.hidden_states(ids))
    read = gpt.scalars(gpt.hidden_states(ids)[1][0], first, 1)
    share = ((made - read).norm(dim=-1) / read.norm(dim=-1)).mean()
    told = next(stage for stage in walk.stages if stage.name == "block 1")
    assert f"adds to each token {share:.2f} times" in told.sentence
