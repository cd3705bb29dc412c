"""`heedful.ablate` against hooks on the output projection, in full passes."""

import math
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful.errors import ArgumentError, HeedfulError
from heedful.interventions import Context
from heedful.interventions.ablation import Ablation, rank_correlation
from heedful.interventions.skipping import Blocks
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig

L, H, d = 3, 4, 6
IDS = [
    torch.tensor([row]) for row in ([1, 5, 2, 7, 5], [3, 3, 8, 0, 6], [4, 1, 4], [2, 9, 9, 1, 0])
]
CONTEXTS = [Context({"ids": ids}, text) for ids, text in zip(IDS, (0, 0, 1, 2), strict=True)]
NAMES = [(layer, head) for layer in range(L) for head in range(H)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    config = GPTConfig(vocabulary=10, context_length=8, width=H * d, layers=L, heads=H)
    model = GPT(config).eval()
    for parameter in model.parameters():  # weights that make heads matter
        nn.init.normal_(parameter, std=0.5)
    return model


@contextmanager
def replaced(model, change):
    """Let `change(layer, z)` edit the input z (B, N, H, d) of each output projection."""
    handles = [
        block.attend.output.register_forward_pre_hook(
            lambda _, x, layer=layer: change(layer, x[0].unflatten(-1, (H, d)).clone()).flatten(2)
        )
        for layer, block in enumerate(model.blocks)
    ]
    with torch.no_grad():
        yield
    for handle in handles:
        handle.remove()


def outputs(model, ids):
    """The output z (B, N, H, d) of the heads of each layer."""
    z = []
    with replaced(model, lambda layer, x: z.append(x) or x):
        model(ids)
    return z


def loss(logits, ids):
    return float(-logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None]).mean())


def without(model, ids, heads, new=lambda layer: 0.0):
    """The loss when the output of the heads {(layer, head)} is new(layer)[..., head, :]."""

    def change(layer, z):
        for head in (h for at, h in heads if at == layer):
            value = new(layer)
            z[:, :, head] = value[:, :, head] if isinstance(value, torch.Tensor) else value
        return z

    with replaced(model, change):
        return loss(model(ids).logits, ids)


def replacement(model, kind, number):
    """What heads give instead, by layer; with "resample", contexts are paired in a known way."""
    if kind == "zero":
        return lambda layer: 0.0
    if kind == "resample":
        other = outputs(model, IDS[{0: 1, 1: 3, 3: 0}[number]])
        return lambda layer: other[layer]
    every = [outputs(model, ids) for ids in IDS]
    return lambda layer: torch.cat([z[layer] for z in every], 1).mean(1, keepdim=True)


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_every_delta_equals_full_passes_with_edited_inputs_of_the_projection(model, kind):
    contexts, numbers = CONTEXTS, range(4)
    if kind == "resample":
        numbers = (0, 1, 3)
        pairs = {0: 1, 1: 3, 3: 0}
        contexts = [CONTEXTS[i]._replace(other={"ids": IDS[pairs[i]]}) for i in numbers]
    groups = {"plain": ["0.1", "2.*"], "layer": ["1.*"]}
    result = heedful.ablate(model, contexts, kind=kind, groups=groups)
    plain = {i: without(model, IDS[i], []) for i in numbers}
    tokens = {i: IDS[i].shape[1] - 1 for i in numbers}  # that each context predicts

    def mean_of(values):
        return sum(tokens[i] * values[i] for i in numbers) / sum(tokens.values())

    assert result["plain"] == pytest.approx(mean_of(plain), abs=1e-6)
    chosen = [{name} for name in NAMES]
    chosen += [{(0, 1), *((2, h) for h in range(H))}, {(1, h) for h in range(H)}]
    rows = [*result["heads"], *result["groups"]]
    assert [(row["layer"], row["head"]) for row in result["heads"]] == NAMES
    for heads, row in zip(chosen, rows, strict=True):
        deltas = {
            i: without(model, IDS[i], heads, replacement(model, kind, i)) - plain[i]
            for i in numbers
        }
        mean = mean_of(deltas)
        assert row["delta"] == pytest.approx(mean, abs=2e-6)
        off = {i: tokens[i] * (deltas[i] - mean) for i in numbers}
        residuals = [off[0] + off[1], *(off[i] for i in numbers if i > 1)]
        T = len(residuals)
        error = math.sqrt(T / (T - 1) * sum(r * r for r in residuals)) / sum(tokens.values())
        assert row["error"] == pytest.approx(error, abs=2e-6)
    for group, heads in zip(result["groups"], chosen[-2:], strict=True):
        total = sum(row["delta"] for row in result["heads"] if (row["layer"], row["head"]) in heads)
        assert group["sum"] == pytest.approx(total)
    assert result["proofs"] == {"proved": (len(NAMES) + 2) * len(contexts)}


def test_metrics_equal_their_definitions(model):
    def difference(output, inputs, unchanged):
        return output.logits[0, -1, 7] - output.logits[0, -1, 3]

    with torch.no_grad():
        old = model(IDS[0]).logits[0].double().log_softmax(-1)
        with replaced(model, lambda layer, z: z * (layer != 1)):
            new = model(IDS[0]).logits[0].double().log_softmax(-1)
    expected = {
        "kl": (0.0, (old.exp() * (old - new)).sum(-1).mean()),
        difference: (old[-1, 7] - old[-1, 3], new[-1, 7] - new[-1, 3] - old[-1, 7] + old[-1, 3]),
    }
    for metric, (plain, delta) in expected.items():
        result = heedful.ablate(model, [{"ids": IDS[0]}], metric=metric, groups={"g": ["1.*"]})
        assert result["plain"] == pytest.approx(float(plain), abs=1e-5)
        assert result["groups"][0]["delta"] == pytest.approx(float(delta), abs=1e-5)
        assert result["groups"][0]["error"] is None


class Attending(nn.Module):
    """Heads whose attention is a kernel; the residual stream is (1, N, width)."""

    def __init__(self, query, key, value, output):
        super().__init__()
        parts = {"query": query, "key": key, "value": value, "output": output}
        for name, weights in parts.items():  # (H, width, d), and (H, d, width)
            self.register_parameter(name, nn.Parameter(weights, requires_grad=False))

    def forward(self, x):
        q, k, v = (torch.einsum("bnw,hwd->bhnd", x, side) for side in
                   (self.query, self.key, self.value))  # fmt: skip
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return x + torch.einsum("bhnd,hdw->bnw", z, self.output)


class Induction(nn.Module):
    """Head 0.1 copies the previous token, and head 1.2 predicts the token that followed it."""

    def __init__(self, V=11, N=24, H=3):
        super().__init__()
        self.V, self.N, width = V, N, 3 * V + N  # token, token before, prediction, position
        token, before, after, position = torch.eye(width).split([V, V, V, N])
        generator = torch.Generator().manual_seed(1)
        # idle heads attend and have values, and write nothing
        q, k, v = 0.3 * torch.randn(3, 2, H, width, N, generator=generator)
        output = torch.zeros(2, H, N, width)
        for layer, head, query, key, writes in (
            (0, 1, 30 * position, position.roll(1, 0), before),
            (1, 2, 20 * token, before, after),
        ):
            for side, rows in ((q, query), (k, key), (v, token)):
                side[layer, head] = F.pad(rows.T, (0, N - len(rows)))
            output[layer, head, :V] = writes
        self.layers = nn.ModuleList(Attending(q[i], k[i], v[i], output[i]) for i in (0, 1))

    def forward(self, ids):
        x = torch.cat([F.one_hot(ids, self.V), torch.zeros(1, len(ids[0]), 2 * self.V),
                       torch.eye(self.N)[None, : len(ids[0])]], dim=-1)  # fmt: skip
        for layer in self.layers:
            x = layer(x.float())
        return 4 * x[..., 2 * self.V : 3 * self.V]


REPEATED = [{"ids": torch.tensor([3 * row])} for row in ([3, 7, 1, 9, 0, 5], [8, 2, 6, 4, 1])]


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_heads_built_for_induction_come_first_and_idle_heads_have_no_effect(kind):
    result = heedful.ablate(Induction().eval(), REPEATED, kind=kind)
    deltas = {(row["layer"], row["head"]): row["delta"] for row in result["heads"]}
    assert sorted(deltas, key=deltas.get)[-2:] in ([(0, 1), (1, 2)], [(1, 2), (0, 1)])
    assert min(deltas[0, 1], deltas[1, 2]) > 1
    idle = [delta for name, delta in deltas.items() if name not in ((0, 1), (1, 2))]
    assert max(map(abs, idle)) < 1e-6


def test_edges_equal_attention_with_these_pairs_masked():
    model, ids = Induction().eval(), REPEATED[0]["ids"]
    result = heedful.ablate(model, REPEATED[:1], groups={"e": ["1.2@7-9:1-3"], "all": ["1.2@*:*"]})
    with heedful.record(model, values=True) as recording:
        model(ids)
    weights, losses, last = recording[1].weights(2), [], model.layers[1]
    with torch.no_grad():
        x = torch.cat([F.one_hot(ids, 11), torch.zeros(1, 18, 22), torch.eye(24)[None, :18]], -1)
        x = model.layers[0](x.float())[0]
        for _ in range(2):
            z = weights @ x @ last.value[2]
            losses.append(loss(4 * (x + z @ last.output[2])[None, :, 22:33], ids))
            weights[7:10, 1:4] = 0
            weights = F.normalize(weights, p=1, dim=-1)
    edges, every = result["groups"]
    assert edges["delta"] == pytest.approx(losses[1] - losses[0], rel=1e-4)
    assert edges["delta"] > 0.1
    assert every["delta"] == pytest.approx(result["heads"][5]["delta"], rel=1e-4)
    assert (edges["sum"], every["sum"]) == (None, None)


def test_blocks_below_run_once_and_forward_is_restored_after_an_error(model):
    ran = Counter()
    handles = [
        block.attend.register_forward_hook(lambda *_, i=i: ran.update([i]))
        for i, block in enumerate(model.blocks)
    ]
    heedful.ablate(model, [{"ids": IDS[0]}])
    for handle in handles:
        handle.remove()
    # the recorded pass, the plain one, and the last block in the check
    assert ran == {0: 2 + H, 1: 2 + 2 * H, 2: 2 + 1 + 3 * H}
    blocks = Blocks(model, [f"blocks.{i}.attend" for i in range(L)])
    with blocks.recorded():
        model(IDS[0])
    with suppress(KeyboardInterrupt), blocks.skipped(["blocks.2.attend"]):
        assert ["forward" in vars(block) for block in model.blocks] == [True, True, False]
        raise KeyboardInterrupt
    assert not any("forward" in vars(block) for block in model.blocks)


class Sharing(nn.Module):
    """A block that needs what the first block has stored in this pass."""

    def __init__(self, attend, state):
        super().__init__()
        self.attend, self.state = attend, state

    def forward(self, x):
        self.state["sum"] = self.state.get("sum", 0) + x
        return self.attend(x) + self.state["sum"]


class InPlace(Sharing):
    """A block that changes its input, which is the output of the block before."""

    def forward(self, x):
        return self.attend(x.mul_(1.1))


@pytest.mark.parametrize("kind", [Sharing, InPlace])
def test_results_are_those_of_full_passes_whatever_blocks_do(kind, monkeypatch):
    model, state = Induction().eval(), {}
    model.layers = nn.ModuleList(kind(layer, state) for layer in model.layers).eval()
    model.register_forward_pre_hook(lambda *_: state.clear())
    skipping = heedful.ablate(model, REPEATED)
    monkeypatch.setattr(Ablation, "_can_skip", lambda *_: False)
    assert heedful.ablate(model, REPEATED) == skipping


def linear(weights):
    return lambda output, inputs, unchanged: (output * weights).sum()


def test_first_order_is_exact_for_a_linear_metric():
    generator = torch.Generator().manual_seed(2)
    x, other, weights = (torch.randn(1, 6, 12, generator=generator) for _ in range(3))
    model = nn.Sequential(Attending(*torch.randn(3, H, 12, d, generator=generator),
                                    torch.randn(H, d, 12, generator=generator))).eval()  # fmt: skip
    context = Context({"input": x}, other={"input": other})
    options = {"metric": linear(weights), "first_order": True}
    for kind in ("zero", "mean", "resample"):
        contexts = [context, Context({"input": other}, 1, {"input": x}, linear(3 * weights))]
        result = heedful.ablate(model, contexts, kind=kind, **options)
        for row in result["heads"]:
            assert row["first_order"] == pytest.approx(row["delta"], rel=1e-4, abs=1e-4)
        assert result["correlation"] == 1.0
        assert (result["heads"][0]["query"] is None) == (kind != "resample")
    result = heedful.ablate(model, [context], kind="resample", **options)
    layer = model[0]
    q, k, v, q_other, k_other = (
        torch.einsum("bnw,hwd->bhnd", inputs, side)
        for inputs, side in ((x, layer.query), (x, layer.key), (x, layer.value),
                             (other, layer.query), (other, layer.key))
    )  # fmt: skip
    mask = ~torch.ones(6, 6).tril().bool()

    def value(q, k, head):
        z = (q @ k.mT)[0, head].masked_fill(mask, -torch.inf).softmax(-1) @ v[0, head]
        return float((z @ layer.output[head] * weights[0]).sum())

    for head, row in enumerate(result["heads"]):
        plain = value(q, k, head)
        assert row["query"] == pytest.approx(value(q_other, k, head) - plain, rel=1e-3, abs=1e-3)
        assert row["key"] == pytest.approx(value(q, k_other, head) - plain, rel=1e-3, abs=1e-3)


def test_first_order_is_the_negative_gradient_of_gates(model):
    result = heedful.ablate(model, [{"ids": IDS[0]}], first_order=True)
    gates = torch.ones(L, H, requires_grad=True)
    changes = {f"blocks.{i}": heedful.change.scale(gate) for i, gate in enumerate(gates)}
    with heedful.intervene(model, changes):
        logits = model(IDS[0]).logits[0, :-1]
    [expected] = torch.autograd.grad(F.cross_entropy(logits, IDS[0][0, 1:]), gates)
    estimates = torch.tensor([row["first_order"] for row in result["heads"]])
    torch.testing.assert_close(estimates, -expected.flatten(), rtol=1e-4, atol=1e-6)


def test_first_order_takes_only_a_sample_of_heads_away():
    model = GPT(GPTConfig(vocabulary=10, context_length=8, width=32, layers=3, heads=16)).eval()
    result = heedful.ablate(model, [{"ids": IDS[0]}], first_order=True, groups={"a": ["0.*"]})
    exact = [row for row in result["heads"] if row["delta"] is not None]
    assert len(exact) == 24
    assert None not in [row["first_order"] for row in result["heads"]]
    assert result["groups"][0]["sum"] is None
    assert -1 <= result["correlation"] <= 1


def test_rank_correlation_has_mean_ranks_for_ties():
    assert rank_correlation([(0, 0), (0, 1), (5, 2)]) == pytest.approx(0.866025)  # SciPy's
    assert rank_correlation([(0, 0), (0, 1)]) is None


def test_resample_draws_contexts_of_equal_length(model):
    ablations = [Ablation(model, CONTEXTS, "loss", "resample", {}, False, s) for s in range(9)]
    for ablation in ablations:
        assert [context.text for context in ablation.contexts] == [0, 0, 2]  # 3 tokens: alone
        for context in ablation.contexts:
            assert context.other["ids"].shape == context.inputs["ids"].shape
            assert not torch.equal(context.other["ids"], context.inputs["ids"])
    assert len({str(ablation.contexts[0].other) for ablation in ablations}) == 2


def test_an_encoder_needs_a_function():
    config = BertConfig(vocabulary=10, context_length=8, width=12, layers=2, heads=3)
    model, contexts = Bert(config).eval(), [{"ids": IDS[0], "segments": 0 * IDS[0]}]
    for metric in ("loss", "kl"):
        with pytest.raises(ArgumentError, match=r"Bert without logits.*--metric FILE\.py:FUNCTION"):
            heedful.ablate(model, contexts, metric=metric)

    def distance(output, inputs, unchanged):
        vectors = (part.hidden_states[-1].mean(1) for part in (output, unchanged))
        return 1 - F.cosine_similarity(*vectors).mean()

    result = heedful.ablate(model, contexts, metric=distance, groups={"all": ["*.*"]})
    assert result["plain"] == pytest.approx(0, abs=1e-6)
    assert result["groups"][0]["delta"] > 0


def test_an_encoder_decoder_predicts_its_target():
    config = Seq2SeqConfig(vocabulary=12, context_length=8, width=12, layers=1, heads=2)
    model, target = Seq2Seq(config).eval(), IDS[0]
    result = heedful.ablate(model, [{"source": IDS[3], "target": target}])
    with torch.no_grad():
        logits = model(IDS[3], target)
    assert result["plain"] == pytest.approx(loss(getattr(logits, "logits", logits), target))
    assert len(result["heads"]) == 3 * 2  # of the encoder, the decoder and between them


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": {"a": ["0.1", "3.0"]}}, "'3.0' in the group 'a'; expected heads from 0.0 to"),
        ({"groups": {"a": ["0.1@0"]}}, "'0.1@0'"),
        ({"groups": {"a": ["0.1@0:9"]}}, "keys 9, which no pass had"),
        ({"kind": "noise"}, "kind='noise'.*expected zero, mean, resample"),
        ({"kind": "resample"}, "no context; expected two contexts of equal"),
        ({"metric": "kl", "first_order": True}, "first order of kl"),
        ({"metric": lambda *_: math.nan}, "a metric of nan"),
        ({"metric": lambda output: 1.0}, "the metric raised TypeError: .*expected a function of"),
    ],
)
def test_errors(options, words, model):
    with pytest.raises(HeedfulError, match=words):
        heedful.ablate(model, [{"ids": IDS[0]}, {"ids": IDS[2]}], **options)


def test_contexts_that_would_give_wrong_numbers_are_refused(model):
    padded = {"ids": IDS[0], "attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}
    for context, words in ((padded, "without padding"), (IDS[0], "Tensor as a context")):
        with pytest.raises(ArgumentError, match=words):
            heedful.ablate(model, [context])
    with pytest.raises(ArgumentError, match="training mode"):
        heedful.ablate(GPT(model.config).train(), [{"ids": IDS[0]}])


def test_a_head_that_is_taken_away_stays_away_whatever_its_edges_are(model):
    groups = {"head": ["1.1"], "both": ["1.1", "1.1@*:0"], "other order": ["1.1@*:0", "1.1"]}
    deltas = [g["delta"] for g in heedful.ablate(model, [{"ids": IDS[0]}], groups=groups)["groups"]]
    assert deltas == [deltas[0]] * 3
