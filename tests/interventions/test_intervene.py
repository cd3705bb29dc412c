"""`heedful.intervene` on heedful's models and on plain modules; names, errors, certificate."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful import change
from heedful.errors import ArgumentError, RunError
from heedful.generate import generate
from heedful.interventions.base import Change
from heedful.models import GPT, GPTConfig
from heedful.models.sampling import Sampling

B, H, G, N, d = 2, 4, 2, 7, 3


class Attention(nn.Module):
    """Attention of G key heads by a kernel; "loops" applies `self.edit` to weights and values."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.edit = kernel, lambda weights, values: weights @ values
        self.to_q, self.to_k = nn.Linear(12, H * d), nn.Linear(12, G * d)
        self.to_v, self.out = nn.Linear(12, G * d), nn.Linear(H * d, 12)

    def forward(self, x, mask):
        q, k, v = (to(x).unflatten(-1, (-1, d)).transpose(1, 2)
                   for to in (self.to_q, self.to_k, self.to_v))  # fmt: skip
        if self.kernel == "sdpa":
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        elif self.kernel == "heedful":
            context = heedful.attention(q, k, v, mask=mask)
        else:
            k, v = (side.repeat_interleave(H // G, dim=1) for side in (k, v))
            scores = (q @ k.mT / d**0.5).masked_fill(~mask, -torch.inf)
            context = self.edit(scores.softmax(dim=-1), v)
        return self.out(context.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.layers = nn.ModuleList(Attention(kernel) for _ in range(3))

    def forward(self, x, mask):
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


def model_of(kernel):
    torch.manual_seed(3)
    return Model(kernel).double()


MASK = torch.ones(N, N).tril().bool().expand(B, 1, N, N).clone()
MASK[1, :, :, 5] = torch.eye(N)[:, 5].bool()  # in one text, key 5 is seen by itself alone
X = torch.randn(B, N, 12, generator=torch.Generator().manual_seed(1)).double()
ROWS, KEYS = [2, 6], [0, 1, 2]


def on_heads(heads, compute):
    """An edit that computes the heads from `compute(weights, values)`, other heads unchanged."""

    def edit(weights, values):
        new, old = compute(weights, values), weights @ values
        return torch.stack([new[:, h] if h in heads else old[:, h] for h in range(H)], dim=1)

    return edit


def first(weights, values):
    return F.one_hot((weights > 0).byte().argmax(-1), N).to(values) @ values


def uniform(weights, values):
    return F.normalize((weights > 0).to(values), p=1, dim=-1) @ values


def blocked(weights, *last):
    """Weights without the pairs of ROWS and KEYS, and without more keys of the last row."""
    keep = torch.ones(N, N).double()
    keep[torch.tensor(ROWS)[:, None], torch.tensor(KEYS)] = 0
    keep[6, [*last]] = 0
    return F.normalize(weights * keep, p=1, dim=-1)


CASES = {
    "zero": (change.zero(2), on_heads([2], lambda w, v: 0 * v)),
    "scale": (change.scale(-0.5, [1, 2]), on_heads([1, 2], lambda w, v: -0.5 * (w @ v))),
    "mean": (change.mean([1], of=torch.ones(1, d)), on_heads([1], lambda w, v: torch.ones_like(v))),
    "first": (change.first([0, 3]), on_heads([0, 3], first)),
    "uniform": (change.uniform([0, 3]), on_heads([0, 3], uniform)),
    "block": (change.block(ROWS, KEYS, [1, 3]), on_heads([1, 3], lambda w, v: blocked(w) @ v)),
    "segments": (change.block("last", "start", [1, 3], {"start": range(3), "last": ROWS}),
                 on_heads([1, 3], lambda w, v: blocked(w) @ v)),
    "function": (lambda q, k, v, output: output.flip(1) + v.repeat_interleave(2, 1),
                 lambda w, v: (w @ v).flip(1) + v),
    "two blocks": (
        [change.block(ROWS, KEYS), change.block(6, slice(3, 5)), change.uniform(0)],
        lambda w, v: on_heads([0], uniform)(blocked(w, 3, 4), v),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kernel", ["sdpa", "heedful"])
def test_changes_equal_loops_with_gradients(kernel, case):
    changes, edit = CASES[case]
    model, reference = model_of(kernel), model_of("loops")
    reference.layers[1].edit = edit
    with heedful.intervene(model, {"layers.1": changes}) as changed:
        output = model(X, MASK)
    expected = reference(X, MASK)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-11)
    weights = torch.randn(output.shape, dtype=output.dtype)
    for ours, theirs in zip(
        torch.autograd.grad((output * weights).sum(), list(model.parameters())),
        torch.autograd.grad((expected * weights).sum(), list(reference.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    proof = "unproved" if case == "function" else "proved"
    assert {line.proof for line in changed.report()} == {proof}
    assert {line.module for line in changed.report()} == {"layers.1"}


def test_a_row_that_loses_all_its_keys_gives_zeros_and_is_counted():
    model, outputs = model_of("sdpa"), []
    look = [change.block(slice(0, 3), KEYS, heads=[1]), lambda q, k, v, o: outputs.append(o) or o]
    with heedful.intervene(model, {"layers.1": look}) as changed:
        model(X, MASK)
    assert bool((outputs[0][:, 1, :3] == 0).all())
    assert not bool((outputs[0][:, 0, :3] == 0).any())
    line, function = changed.report()
    assert (line.rows, line.lost, function.difference) == (6, 6, None)
    assert json.loads(changed.report().to_json())[0]["lost"] == 6


def test_attention_whose_heads_are_all_replaced_does_not_run(monkeypatch):
    model, ids, ran = gpt(), torch.tensor([[1, 2, 3]]), []
    kernel = heedful.ops.sdpa.call
    monkeypatch.setattr("heedful.ops.sdpa.call", lambda *a, **k: ran.append(1) or kernel(*a, **k))
    for changes, calls in [({"blocks.1": change.zero()}, 1), ({"blocks.1": change.zero(0)}, 2),
                           ({"blocks.*": [change.first(), change.scale(2.0)]}, 0)]:  # fmt: skip
        ran.clear()
        with heedful.intervene(model, changes):
            model(ids)
        assert len(ran) == calls


def test_gates_learn():
    model = model_of("sdpa")
    with torch.no_grad(), heedful.intervene(model, {"layers.*": change.zero([1, 3])}):
        goal = model(X, MASK)
    gates = torch.full((3, H), 0.5, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.Adam([gates], lr=0.1)
    for _ in range(200):
        gated = {f"layers.{i}": change.scale(gates[i]) for i in range(3)}
        with heedful.intervene(model, gated):
            loss = (model(X, MASK) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(gates[1:2].round().abs(), torch.tensor([[1.0, 0, 1, 0]]).double())


def test_attention_of_torch_and_of_the_projections_of_multihead_attention():
    attention = nn.MultiheadAttention(12, 4, batch_first=True).double()
    outputs = {}
    for mode in ("changed", "loops"):
        if mode == "changed":
            with heedful.intervene(attention, {"MultiheadAttention": change.zero([1])}):
                outputs[mode] = attention(X, X, X, need_weights=False)[0]
        else:
            with torch.no_grad():
                attention.out_proj.weight[:, 3:6] = 0
            outputs[mode] = attention(X, X, X, need_weights=False)[0]
    torch.testing.assert_close(outputs["changed"], outputs["loops"])
    assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"
    layer = nn.TransformerEncoderLayer(12, 4, batch_first=True).double().eval()
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        plain = encoder(X)  # by the fused kernel of torch, which is not used while heads change
        with heedful.intervene(encoder, {"1.self_attn": change.zero()}) as changed:
            assert not torch.allclose(encoder(X), plain)
        with heedful.intervene(encoder, {"1.self_attn": change.scale(1.0)}):
            torch.testing.assert_close(encoder(X), plain)
    assert [line.module for line in changed.report()] == ["layers.1.self_attn"]


def gpt():
    return GPT(GPTConfig(vocabulary=9, context_length=16, width=16, layers=2, heads=4)).eval()


def test_generation_of_heedful_counts_positions_over_the_cache():
    model, prompt = gpt(), torch.tensor([[1, 2, 3, 4]])
    hidden = {"blocks.0": change.block([3, 6], [1, 5, 6])}
    with heedful.intervene(model, hidden) as changed:
        greedy = generate(model, prompt[0].tolist(), tokens=5, sampling=Sampling(temperature=0))
        ids = torch.cat([prompt[0], *(new.flatten() for new in greedy)])[None]
    with heedful.intervene(model, hidden), torch.no_grad():
        logits = model(ids).logits
    assert torch.equal(logits[0, 3:-1].argmax(-1), ids[0, 4:])
    assert changed.report()[0].rows == 2


@pytest.mark.parametrize("kernel", ["sdpa", "heedful"])
def test_record_inside_and_around(kernel):
    model = model_of(kernel)
    changes = {"layers.1": change.zero([0, 2])}
    with heedful.record(model) as plain:
        model(X, MASK)
    with heedful.intervene(model, changes) as changed, heedful.record(model) as inside:
        output = model(X, MASK)
    with heedful.record(model) as around, heedful.intervene(model, changes):
        assert torch.equal(model(X, MASK), output)
    assert {call.proof for call in plain} == {"proved"}
    for recording in (inside, around):
        assert [call.proof for call in recording] == ["proved", "unproved", "proved"]
        assert recording[1].why == "not compared: changed by heedful.intervene: zero, heads 0, 2"
        assert torch.equal(recording[1].weights(), plain[1].weights())
        assert not recording.missed
    assert changed.report()[0].calls == 1
    with heedful.intervene(model, changes), heedful.intervene(model, {"layers.2": change.zero(1)}):
        both = model(X, MASK)
    with heedful.intervene(model, changes | {"layers.2": change.zero(1)}):
        assert torch.equal(model(X, MASK), both)


def run(model, changes, *inputs):
    with heedful.intervene(model, changes) as changed:
        model(*inputs)
    return changed


def hooks(model):
    return [(*m._forward_hooks, *m._forward_pre_hooks) for m in model.modules()]


@pytest.mark.parametrize("kernel", ["sdpa", "heedful"])
def test_nothing_stays_changed(kernel):
    model = model_of(kernel)
    before, plain = hooks(model), model(X, MASK)

    def fails(*tensors):
        raise KeyboardInterrupt

    for changes in (change.zero(), fails):
        try:
            with heedful.intervene(model, {"layers.0": changes}):
                assert not torch.equal(model(X, MASK), plain)
        except KeyboardInterrupt:
            assert changes is fails
        assert torch.equal(model(X, MASK), plain)
        assert hooks(model) == before
    with pytest.raises(ZeroDivisionError), heedful.intervene(model, {"layers.0": change.zero()}):
        1 / 0  # noqa: B018


NAMES = {
    "blocks": r"'blocks', a part of 2 names|'blocks', in which several modules attend; .*"
              r"blocks.0.attend, blocks.1.attend",
    "blocks.9": r"'blocks.9', not a part of a module's name; expected .*blocks.\d.attend",
    "ocks.1": r"'ocks.1', not a part",
    "attend": r"'attend', a part of 2 names: blocks.0.attend, blocks.1.attend; expected one module",
    "blocks.1.feed": r"the attention of blocks.1.feed was not changed; expected "
                             r"modules that can be changed: blocks.0.attend, blocks.1.attend",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_modules(name):
    model = gpt()
    with pytest.raises((ArgumentError, RunError), match=NAMES[name]):
        run(model, {name: change.zero(0)}, torch.tensor([[1, 2]]))


BAD = [
    (lambda: change.zero(4), "head 4 of blocks.1.attend; expected heads from 0 to 3"),
    (lambda: change.zero([]), "heads=.*expected numbers of heads"),
    (lambda: change.zero([1, 1]), "each once"),
    (lambda: change.zero(-1), "heads=-1"),
    (lambda: change.zero("1"), "heads='1'"),
    (lambda: change.scale("2"), "factor='2'"),
    (lambda: change.scale(torch.ones(3)), r"factor of shape \(3,\) in blocks.1.attend; .* 4, one"),
    (lambda: change.mean(of=torch.ones(3, 3)), r"means of shape \(3, 3\).*4 heads, width 4"),
    (lambda: change.mean(of=3), "a recording of type int"),
    (lambda: change.block(5, 0), "queries 5, which no pass had; expected positions below 3"),
    (lambda: change.block(2, [0, 7]), "keys 7, which no pass had"),
    (lambda: change.block("a", 0), "queries='a'; expected positions"),
    (lambda: change.block(0, 1.5), "keys=1.5"),
    (lambda: change.pattern_from(3), "a recording of type int"),
    (lambda: change.resample([]), "expected a list of recordings"),
    (lambda: 3, "a change 3; expected modules"),
    (lambda: change.zero, "a change <function zero"),
    (lambda: lambda q, k, v, o: o[0], r"returned \(4, 3, 4\) for blocks.1.attend"),
    (lambda: lambda q, k, v, o: None, "returned NoneType"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:24] for _, message in BAD])
def test_wrong_arguments_are_one_line(make, message):
    model = gpt()
    with pytest.raises(ArgumentError, match=message) as caught:
        run(model, {"blocks.1": make()}, torch.tensor([[1, 2, 3]]))
    assert "\n" not in str(caught.value)


class HeadsFirst(nn.Module):
    def forward(self, x):
        q = x.unflatten(-1, (-1, d)).permute(2, 0, 1, 3)[:3]
        return F.scaled_dot_product_attention(q, q, q)


def test_a_whole_name_is_that_module_though_another_name_ends_with_it():
    model = model_of("sdpa")
    model.add_module("vision", nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)] * 2)}))
    with heedful.intervene(model, {"layers.1": change.zero(0)}) as changed:
        model(X, MASK)
    assert [line.module for line in changed.report()] == ["layers.1"]


def test_axes_that_are_not_texts_and_heads_are_refused():
    message = r"a query \(3, 2, 7, 3\) of HeadsFirst, for 2 texts; expected the axes"
    with pytest.raises(ArgumentError, match=message):
        run(HeadsFirst(), {"HeadsFirst": change.zero(0)}, X)


def test_wrong_models_and_runs():
    with pytest.raises(ArgumentError, match="a model of type int"), heedful.intervene(3, {}):
        pass
    with pytest.raises(ArgumentError, match=r"changes \{\}"), heedful.intervene(gpt(), {}):
        pass
    message = "no forward pass of the model, so blocks.1 was not changed"
    changes = {"blocks.1": change.zero(0)}
    with pytest.raises(RunError, match=message), heedful.intervene(gpt(), changes):
        pass
    with pytest.raises(RunError, match=r"attention of layers.1 was not changed; .*by hand"):  # noqa: SIM117
        with heedful.intervene(model := model_of("loops"), {"layers.1": change.zero(0)}):
            model(X, MASK)


@pytest.mark.parametrize("factor", [2.001, float("nan")])
def test_a_change_that_differs_from_its_definition_is_refuted(factor):
    wrong = Change("wrong", (1,), lambda call, rows: call.before[:, :, rows] * 2,
                   lambda call: call.before * factor)  # fmt: skip
    with pytest.warns(UserWarning, match="wrong in blocks.1.attend differs from its definition"):
        changed = run(gpt(), {"blocks.1": wrong}, torch.tensor([[1, 2, 3]]))
    assert changed.report()[0].proof == "refuted"
