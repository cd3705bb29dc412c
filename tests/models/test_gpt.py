import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from heedful.errors import ArgumentError
from heedful.models import GPT, GPTConfig, loss
from heedful.ops.positions import sinusoidal
from heedful.train import PRESETS

SMALL = {"vocabulary": 23, "context_length": 11, "width": 12, "layers": 2, "heads": 3}
VARIANTS = [
    {},
    {"positions": "sinusoidal", "activation": "relu", "bias": True, "tied": False},
    {"positions": "learned", "activation": "gelu_tanh", "norm": "layer", "attention_bias": True},
    {"kv_heads": 1, "activation": "swiglu", "hidden": 17, "qk_norm": False},
    {"norm_order": "post", "norm": "layer", "heads": 2, "activation": "gelu", "logit_bias": True},
    {"window": 3, "head_width": 6, "activation": "reglu", "feed_bias": True, "bias": False},
    {"convolution": 3},
]


def tiny(**changes):
    model = GPT(GPTConfig(**{**SMALL, **changes})).eval()
    for weight in model.convolution.parameters() if model.convolution else ():
        torch.nn.init.normal_(weight)  # they are initialised to have no effect
    return model


def document_004(model, ids):
    """The forward pass of document 004, written out: heads by slices, masks by a triangle.

    With norms after each sum, as its steps 5 and 6 say, or before each part, as its author's code.
    """
    state = model.state_dict()
    config, N = model.config, ids.shape[1]

    def norm(name, x, order):
        return (
            x
            if order != config.norm_order
            else F.layer_norm(x, (config.width,), state[name + ".weight"], state[name + ".bias"])
        )

    x = state["tokens.weight"][ids] + sinusoidal(N, config.width)
    shapes = [tuple(x.shape)]
    triangle = torch.ones(N, N).tril() == 0
    for i in range(config.layers):
        p = f"blocks.{i}."
        inputs = norm(p + "attend_norm", x, "pre")
        query, key, value = (inputs @ state[p + "attend.projection.weight"].T).chunk(3, dim=-1)
        heads = []
        for q, k, v in zip(
            *(t.split(config.width // config.heads, -1) for t in (query, key, value)), strict=True
        ):
            scores = q @ k.transpose(1, 2) / math.sqrt(k.shape[-1])
            shapes.append(tuple(scores.shape))
            heads.append(scores.masked_fill(triangle, -math.inf).softmax(-1) @ v)
        joined = torch.cat(heads, dim=-1)
        x = x + joined @ state[p + "attend.output.weight"].T + state[p + "attend.output.bias"]
        x = norm(p + "attend_norm", x, "post")
        inputs = norm(p + "feed_norm", x, "pre")
        hidden = (inputs @ state[p + "feed.enter.weight"].T + state[p + "feed.enter.bias"]).relu()
        x = x + hidden @ state[p + "feed.output.weight"].T + state[p + "feed.output.bias"]
        x = norm(p + "feed_norm", x, "post")
    x = norm("norm", x, "pre")
    return x @ state["head.weight"].T + state["head.bias"], shapes


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_zero_to_hero_model_equals_that_of_document_004(order):
    preset = PRESETS["zero-to-hero"].model
    config = dataclasses.replace(preset, vocabulary=3771, norm_order=order)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    ids = torch.randint(3771, (4, 16))
    expected, shapes = document_004(model, ids)
    output = model(ids)
    assert shapes[:2] == [(4, 16, 64), (4, 16, 16)]
    assert output.logits.shape == (4, 16, 3771)
    torch.testing.assert_close(output.logits, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_token_attends_to_a_later_one(variant):
    model = tiny(**variant)
    ids = torch.randint(23, (2, 9))
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 23
    logits, changed_logits = model(ids).logits, model(changed).logits
    torch.testing.assert_close(logits[:, :5], changed_logits[:, :5])
    assert not torch.allclose(logits[:, 5:], changed_logits[:, 5:])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_cache_gives_the_same_logits_and_states(variant):
    model = tiny(**variant)
    ids = torch.randint(23, (3, 11))
    full = model(ids)
    cache = model.new_cache(batch=3)
    parts = [model(ids[:, a:b], cache=cache) for a, b in [(0, 5), (5, 6), (6, 11)]]
    torch.testing.assert_close(
        torch.cat([part.logits for part in parts], 1), full.logits, atol=1e-5, rtol=0
    )
    for i, state in enumerate(full.hidden_states):
        joined = torch.cat([part.hidden_states[i] for part in parts], 1)
        torch.testing.assert_close(joined, state, atol=1e-5, rtol=0)


def test_reach_of_a_window_grows_with_the_layers():
    """With 2 layers and a window of 3, token 4 influences tokens up to 8, through token 6."""
    model = tiny(window=3)
    ids = torch.randint(23, (1, 11))
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 23
    differs = (model(ids).logits != model(changed).logits).any(-1)[0]
    assert differs.nonzero()[:, 0].tolist() == [4, 5, 6, 7, 8]
    weights = next(model.steps(ids)).weights[0]
    positions = torch.arange(11)
    distance = positions[:, None] - positions
    assert torch.equal(weights > 0, ((distance >= 0) & (distance < 3)).expand(3, 11, 11))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_steps_equal_the_forward_pass(variant):
    """Each layer's context, through its output projection, equals what attention adds."""
    model = tiny(**variant)
    ids = torch.randint(23, (2, 7))
    outputs = []
    for block in model.blocks:
        block.attend.register_forward_hook(lambda layer, x, y: outputs.append(y))
    model(ids)
    expected = list(outputs)
    for steps, block, y in zip(model.steps(ids), model.blocks, expected, strict=True):
        joined = block.attend.output(steps.context.transpose(1, 2).flatten(2))
        torch.testing.assert_close(joined, y, atol=1e-6, rtol=0)


def test_every_parameter_learns():
    for variant in VARIANTS:
        model = tiny(**variant)
        ids = torch.randint(23, (2, 8))
        loss(model(ids).logits, ids).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_loss_is_the_mean_over_tokens():
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    likely = logits.softmax(-1).gather(-1, targets[..., None]).log().mean()
    torch.testing.assert_close(loss(logits, targets), -likely)
    assert loss(logits.bfloat16(), targets).dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 5}, "divides the width"),
        ({"kv_heads": 2}, "key heads"),
        ({"positions": "sinusodial"}, "sinusoidal"),
        ({"layers": 2.5}, "of type int"),
        ({"width": 9}, "even width"),
        ({"rotary_base": float("inf")}, "a finite number of at least 1.0"),
    ],
)
def test_fields_out_of_range_are_refused_in_one_line(changes, words):
    with pytest.raises(ArgumentError, match=words):
        GPTConfig(**{**SMALL, **changes})
