"""The doors of torch's own functions: SDPA, nn.MultiheadAttention, and a softmax by hand."""

import math
import operator
import weakref

import pytest
import torch
from looked import looked_at, shows, weighed
from torch import nn

import heedful
from heedful.errors import RunError
from heedful.ops.masks import Causal
from heedful.recorder import softmax_matmul

PADDING = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])


def multi_head(batch_first, **options):
    torch.manual_seed(3)
    layer = nn.MultiheadAttention(12, 3, batch_first=batch_first, **options).eval()
    query, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    if not batch_first:
        query, memory = query.transpose(0, 1), memory.transpose(0, 1)
    return layer, (query, memory, memory)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 12, "vdim": 12}])
def test_multi_head_attention(need_weights, batch_first, options):
    layer, given = multi_head(batch_first, **options)
    _, maps = layer(*given, key_padding_mask=PADDING, average_attn_weights=False)
    before, _ = layer(*given, key_padding_mask=PADDING, need_weights=need_weights)
    with heedful.record(layer) as recording:
        during, _ = layer(*given, key_padding_mask=PADDING, need_weights=need_weights)
    assert torch.equal(before, during)
    for b, sequence in enumerate(recording.sequences):
        [call] = sequence
        assert (call.name, call.kind, call.door) == (
            "MultiheadAttention", "cross", "nn.MultiheadAttention"
        )  # fmt: skip
        torch.testing.assert_close(call.weights(), maps[b][..., ~PADDING[b]], atol=2e-6, rtol=0)
        assert call.check.passed


def test_the_function_itself_with_a_boolean_padding():
    layer, (query, memory, _) = multi_head(False)

    class Functional(nn.Module):
        def forward(self, query, memory):
            return nn.functional.multi_head_attention_forward(
                query, memory, memory, 12, 3, layer.in_proj_weight, layer.in_proj_bias, None, None,
                False, 0.0, layer.out_proj.weight, layer.out_proj.bias, training=False,
                key_padding_mask=PADDING, average_attn_weights=False,
            )  # fmt: skip

    with heedful.record(functional := Functional()) as recording:
        _, maps = functional(query, memory)
    for b, sequence in enumerate(recording.sequences):
        found = sequence[0].weights()
        torch.testing.assert_close(found, maps[b][..., ~PADDING[b]], atol=2e-6, rtol=0)


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_multi_head_attention_with_keys_of_its_own(options):
    layer, (query, memory, _) = multi_head(True, **options)
    _, maps = layer(query, memory, memory, average_attn_weights=False)
    with heedful.record(layer) as recording:
        layer(query, memory, memory, need_weights=False)
    for sequence, map_ in zip(recording.sequences, maps, strict=True):
        torch.testing.assert_close(sequence[0].weights(), map_, atol=2e-6, rtol=0)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_mask_of_multi_head_attention_is_recognised(need_weights):
    layer, (query, _, _) = multi_head(True)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)  # True is to be ignored here
    options = {"attn_mask": mask, "need_weights": need_weights}
    _, map_ = layer(query[0], query[0], query[0], attn_mask=mask, average_attn_weights=False)
    with heedful.record(layer) as recording:
        layer(query[0], query[0], query[0], **options)
    assert recording[0].causes.mask == Causal(0)
    assert recording[0].kind == "causal"
    torch.testing.assert_close(recording[0].weights(), map_, atol=2e-6, rtol=0)


def test_torchs_own_transformer_with_gradients():
    torch.manual_seed(4)
    model = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
    source, target = torch.randn(2, 7, 16), torch.randn(2, 7, 16)
    options = {
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(7),
    }
    found = []
    for context in (heedful.record(nn.Identity()), heedful.record(model)):
        model.zero_grad()
        with context as recording:
            loss = model(source, target, **options).square().sum()
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    kinds = ["self", "self", "causal", "cross", "causal", "cross"]
    assert [call.kind for call in recording] == kinds
    # the pairs are read from the second sequence, whose source has five tokens
    assert [call.shape[1:] for call in recording.sequences[1]] == [
        (5, 5), (5, 5), (7, 7), (7, 5), (7, 7), (7, 5)
    ]  # fmt: skip
    assert all(call.check.passed for call in recording)
    assert recording[3].name == "decoder.layers.0.multihead_attn"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_padded_encoder_gives_real_tokens_what_it_gave():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 7, 16)
    with torch.no_grad():  # where torch would take its fused path, which cannot be seen
        before = encoder(x, src_key_padding_mask=PADDING)
        with heedful.record(encoder) as recording:
            during = encoder(x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(before[~PADDING], during[~PADDING])
    assert [call.shape for call in recording.sequences[1]] == [(2, 5, 5)] * 2


class Kernel(nn.Module):
    """Calls SDPA as it is told."""

    def forward(self, query, key, **options):
        return nn.functional.scaled_dot_product_attention(query, key, key, **options)


@pytest.mark.parametrize("kind", ["boolean", "added"])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)])
def test_masks_of_any_number_of_axes(lead, kind):
    generator = torch.Generator().manual_seed(5)
    query, key = (torch.randn(*lead, n, 4, generator=generator) for n in (5, 6))
    mask = torch.rand(*lead, 5, 6, generator=generator) < 0.7
    mask[..., 0] = True
    if kind == "added":
        mask = torch.where(mask, torch.randn(*lead, 5, 6, generator=generator), -math.inf)
    with heedful.record(kernel := Kernel()) as recording:
        kernel(query, key, attn_mask=mask, scale=0.7)
    scores = 0.7 * query @ key.mT
    scores = scores + mask if kind == "added" else scores.masked_fill(~mask, -math.inf)
    found = torch.stack([sequence[0].weights() for sequence in recording.sequences])
    torch.testing.assert_close(
        found.reshape(*lead, 5, 6), scores.softmax(-1), atol=2e-6, rtol=0
    )  # fmt: skip
    assert recording[0].check.passed


@pytest.mark.parametrize(
    "function",
    [torch._C._nn.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention],
)
def test_other_names_of_the_kernel(function):
    class Other(nn.Module):
        def forward(self, x):
            return function(x, x, x)

    with heedful.record(other := Other()) as recording:
        other(torch.randn(2, 3, 5, 4))
    assert [call.door for call in recording] == ["scaled_dot_product_attention"]


class Hand(nn.Module):
    """Attention as many write it, with a router that looks alike and moves no values."""

    def __init__(self, flat, spelled):
        super().__init__()
        self.project, self.drop = nn.Linear(12, 36), nn.Dropout(0.1)
        self.router = nn.Linear(12, 4)
        self.flat, self.spelled = flat, spelled

    def forward(self, x):
        B, N, _ = x.shape
        query, key, value = self.project(x).view(B, N, 3, 3, 4).permute(2, 0, 3, 1, 4)
        if self.flat:
            query, key, value = (part.reshape(B * 3, N, 4) for part in (query, key, value))
        self.map = self.spelled(query @ key.mT / 2)
        best = nn.functional.softmax(self.router(x), dim=-1).topk(2).indices.float().mean()
        weights = self.spelled(query @ key.mT / 2).to(torch.float64).float()
        return best + self.drop(weights) @ value


SPELLED = {
    "function": lambda scores: nn.functional.softmax(scores, dim=-1),
    "method": lambda scores: scores.softmax(-1),
    "positive": lambda scores: torch.softmax(scores, scores.ndim - 1),
    "module": nn.Softmax(dim=-1),
    "a logarithm, raised": lambda scores: nn.functional.log_softmax(scores, -1).exp(),
    "in place": lambda scores: torch.exp_(scores.log_softmax(dim=-1)),
    "by definition": lambda scores: torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True),
    "raised, and its sum": lambda scores: over_its_sum((scores - scores.amax(-1, True)).exp()),
    "its sum, unsqueezed": lambda scores: (raised := scores.exp()).div(raised.sum(-1)[..., None]),
    "divided in place": lambda scores: (raised := scores.exp()).div_(raised.sum(-1, True)),
    "more than nothing": lambda scores: (raised := scores.exp()) / (raised.sum(-1, True) + 1e-9),
    "hidden": lambda scores: over_its_sum(scores.exp() * (scores.abs() > 0)),
    "a row that sees nothing": lambda scores: (
        (raised := scores.exp() * (torch.arange(5) < 4)[:, None]) / (raised.sum(-1, True) + 1e-9)
    ),
}


def over_its_sum(raised):
    return raised / raised.sum(-1, keepdim=True)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("spelled", SPELLED)
def test_attention_by_hand_is_seen_by_its_softmax(spelled, flat):
    model = Hand(flat, SPELLED[spelled]).eval()
    with heedful.record(model, values=True) as recording:
        model(torch.randn(2, 5, 12))
    maps = model.map.view(2, 3, 5, 5)
    for sequence, map_ in zip(recording.sequences, maps, strict=True):
        [call] = sequence
        assert call.door == softmax_matmul.ALONE
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=0)
        assert math.isnan(call.check.worst)
        assert call.check.why == "only the weights are known"
        with pytest.raises(RunError, match="no values"):
            call.value_norm()


def test_two_softmaxes_before_their_products_and_a_batch_of_another_size():
    class BothSides(nn.Module):
        def forward(self, x, y):
            scores = x @ y.mT
            of_x, of_y = scores.softmax(-1), scores.mT.softmax(-1)
            moved = of_x @ y, of_y @ x
            return moved, nn.functional.scaled_dot_product_attention(x[:1], x[:1], x[:1])

    x, y = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4)
    with heedful.record(model := BothSides()) as recording:
        model(x, y)
    assert [call.shape for call in recording] == [(3, 5, 6), (3, 6, 5), (3, 5, 5)]
    assert [len(sequence) for sequence in recording.sequences] == [3, 2]
    found = recording.sequences[1][1].weights()
    torch.testing.assert_close(found, (x @ y.mT)[1].mT.softmax(-1), atol=2e-6, rtol=0)


def test_what_no_product_takes_is_let_go():
    class Chooses(nn.Module):
        """Experts, say: a softmax and no product, five times."""

        def forward(self, x):
            chosen = [weakref.ref(x.softmax(-1)) for _ in range(5)]
            self.held = sum(one() is not None for one in chosen)
            return (x @ x.mT).softmax(-1) @ x

    with heedful.record(model := Chooses()) as recording:
        model(torch.randn(2, 3, 5, 4))
    assert model.held <= 2
    assert len(recording) == 1


def test_a_compiled_model_and_inference_mode():
    torch.manual_seed(6)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    compiled, x = torch.compile(model, backend="eager"), torch.randn(2, 7, 16)
    with torch.inference_mode(), heedful.record(compiled) as recording:
        compiled(x)
    with heedful.record(model) as plain:
        model(x)
    assert [call.name for call in recording] == ["self_attn"]
    torch.testing.assert_close(recording[0].weights(), plain[0].weights(), atol=2e-6, rtol=0)
    torch.testing.assert_close(recording.summary()["entropy"], plain.summary()["entropy"])


QUERIES, KEYS = "bhqd", "bhkd"


class Spelled(nn.Module):
    """Attention in einsums whose letters stand in any order."""

    def __init__(self, of_query, of_key, of_weights, product):
        super().__init__()
        self.axes, self.product = (of_query, of_key, of_weights), product

    def forward(self, query, key):
        of_query, of_key, of_weights = self.axes
        query = query.permute([QUERIES.index(axis) for axis in of_query])
        key = key.permute([KEYS.index(axis) for axis in of_key])
        weights = torch.einsum(f"{of_query},{of_key}->{of_weights}", query, key).softmax(-1)
        is_first = self.product.replace(" ", "").startswith(of_weights)
        return torch.einsum(self.product, *((weights, key) if is_first else (key, weights)))


@pytest.mark.parametrize(
    "axes",
    [
        ("bqhd", "bkhd", "bqhk", "bqhk,bkhd->bqhd"),
        ("bqhd", "bkhd", "bqhk", "bkhd,bqhk->bqhd"),  # weights on the right
        ("bqhd", "bkhd", "bhqk", "bhqk,bkhd->bqhd"),
        ("bhqd", "bhkd", "bhqk", "b h q k, b h k d -> b h q d"),
        ("bhqd", "bhkd", "bhqk", "bhkd,bhqk->bqhd"),
        ("bqhd", "bkhd", "bqhk", "bqhk,bkhd->bhdq"),
        ("bqhd", "bkhd", "qbhk", "qbhk,bkhd->qbhd"),
    ],
)
def test_einsums_with_axes_in_any_order(axes):
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    shows(looked_at(Spelled(*axes), query, key), weighed(query, key))


class Then(nn.Module):
    """Attention by hand, with something done to its scores and its weights before the product."""

    def __init__(self, to_weights=lambda weights: weights, to_scores=lambda scores: scores):
        super().__init__()
        self.to_weights, self.to_scores = to_weights, to_scores

    def forward(self, query, key):
        return self.to_weights(self.to_scores(query @ key.mT).softmax(-1)) @ key


GATE = torch.rand(3, 5, 1, generator=torch.Generator().manual_seed(9))
GATED = {
    "product": lambda weights: weights * GATE,
    "on the left": lambda weights: GATE * weights,
    "method": lambda weights: weights.mul(GATE),
    "in place": lambda weights: weights.mul_(GATE),
    "in place, by sign": lambda weights: operator.imul(weights, GATE),
    "division": lambda weights: weights.div(1 / GATE),
    "cast": lambda weights: (weights.double() * GATE).float(),
    "before dropout": lambda weights: nn.functional.dropout(weights * GATE, 0.4),
    "after dropout": lambda weights: nn.functional.dropout(weights, 0.4) * GATE,
    "in place, after dropout": lambda weights: nn.functional.dropout(weights, 0.4).mul_(GATE),
}


@pytest.mark.parametrize("way", GATED)
def test_a_gate_after_the_softmax_is_in_what_is_shown(way):
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    recording = looked_at(Then(GATED[way]), query, key)
    shows(recording, weighed(query, key) * GATE)
    dropped = (1 - GATE[..., 0]).expand(3, 5)
    torch.testing.assert_close(recording[0].dropped(), dropped, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.4),
        lambda weights: torch.dropout(weights, 0.4, True),
        lambda weights: nn.functional.dropout(weights, p=0.4),
        lambda weights: nn.functional.dropout(weights.double(), 0.4).float(),
        # draws of its own, of as many numbers as there are weights
        lambda weights: nn.functional.dropout(weights, 0.4) + 0 * torch.rand_like(weights),
        lambda weights: torch.rand_like(nn.functional.dropout(weights, 0.4)) * 0 + weights,
    ],
)
def test_what_is_shown_in_training_is_from_before_dropout(drop):
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    shows(looked_at(Then(drop), query, key), weighed(query, key))


def test_what_is_changed_in_place_after_dropout_is_not_the_softmax():
    class Both(nn.Module):
        def forward(self, query, key):
            weights = (query @ key.mT).softmax(-1)
            moved = nn.functional.dropout(weights, 0.4).mul_(GATE) @ key
            return torch.cat([moved.flatten(), weights.flatten()])

    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    shows(looked_at(Both(), query, key), weighed(query, key) * GATE)


def with_sink(scores):
    return torch.cat([scores, torch.linspace(-1, 2, 3).view(3, 1, 1).expand(2, 3, 5, 1)], dim=-1)


@pytest.mark.parametrize(
    "cut", [lambda weights: weights[..., :-1], lambda weights: weights.narrow(-1, 0, 7)]
)
def test_a_column_for_a_sink_that_is_cut_off(cut):
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    recording = looked_at(Then(cut, with_sink), query, key)
    raised = with_sink(torch.einsum("bhqd,bhkd->bhqk", query, key)).double().exp()
    expected = (raised / raised.sum(-1, keepdim=True)).float()
    shows(recording, expected[..., :-1])
    torch.testing.assert_close(recording[0].dropped(), expected[0, ..., -1], atol=2e-6, rtol=0)


PRODUCTS = {
    "matmul": lambda weights, value: torch.matmul(weights, value),
    "method": lambda weights, value: weights.matmul(value),
    "on the right": lambda weights, value: (value.mT @ weights.mT).mT,
    "transposed": lambda weights, value: (value.mT @ weights.transpose(-2, -1)).mT,
    "flat": lambda weights, value: torch.bmm(weights.flatten(0, 1), value.flatten(0, 1)),
    "keywords": lambda weights, value: torch.matmul(input=weights, other=value),
    "a keyword": lambda weights, value: torch.matmul(weights, other=value),
    "keywords, turned round": lambda weights, value: torch.matmul(other=weights.mT, input=value.mT),
    "flat, keywords": lambda weights, value: torch.bmm(
        mat2=value.flatten(0, 1), input=weights.flatten(0, 1)
    ),
    "einsum": lambda weights, value: torch.einsum("bhqk,bhkd->bhqd", weights, value),
    "times, and a sum": lambda weights, value: (weights[..., None] * value.unsqueeze(-3)).sum(-2),
    "times, on the right": lambda weights, value: torch.sum(
        value[:, :, None] * weights.unsqueeze(-1), dim=3
    ),
    "a list": lambda weights, value: torch.einsum("bhqk,bhkd->bhqd", [weights, value]),
    "a list, on the right": lambda weights, value: torch.einsum(
        "bhkd,bhqk->bqhd", [value, weights]
    ),
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_weights_on_either_side_of_a_product(way):
    class Product(nn.Module):
        def forward(self, query, key):
            return PRODUCTS[way]((query @ key.mT).softmax(-1), key)

    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    shows(looked_at(Product(), query, key), weighed(query, key))


@pytest.mark.parametrize("lead", [(), (3,)])
def test_one_text_by_hand_without_an_axis_for_it(lead):
    """Of its heads, where a model has made some of (N, width)."""

    class Unbatched(nn.Module):
        def forward(self, x):
            x = x.unflatten(-1, (*lead, 4)).movedim(0, -2)
            return (x @ x.mT).softmax(-1) @ x

    x = torch.randn(5, 4 * math.prod(lead))
    heads = x.view(5, -1, 4).transpose(0, 1)[None]
    shows(looked_at(Unbatched(), x), weighed(heads, heads))


NONE = {
    "exp alone": lambda scores, x: (-scores.abs()).exp() @ x,
    "a gate": lambda scores, x: (scores.exp() / (1 + scores.exp())) @ x,
    "another norm": lambda scores, x: (e := scores.exp()) / e.norm(dim=-1, keepdim=True) @ x,
    "another axis": lambda scores, x: (e := scores.exp()) / e.sum(-2, keepdim=True) @ x,
    "another axis of logarithms": lambda scores, x: scores.log_softmax(-2).exp() @ x,
    "logarithms": lambda scores, x: scores.log_softmax(-1) @ x,
    "no sum": lambda scores, x: (scores.softmax(-1)[..., None] * x[:, :, None]).amax(-2),
    "another sum": lambda scores, x: (scores.softmax(-1)[..., None] * x[:, :, None]).sum(-3),
    "values of each query": lambda scores, x: (
        scores.softmax(-1)[..., None] * x[:, :, :, None].expand(2, 3, 5, 5, 4)
    ).sum(-2),
    "pooling": lambda scores, x: (scores[:, 0, 0].softmax(-1)[..., None] * x[:, 0]).sum(-2),
    "in torch.func": lambda scores, x: torch.func.vmap(
        lambda scores, x: scores.log_softmax(-1).exp() @ x
    )(scores, x),
}


@pytest.mark.parametrize("way", NONE)
def test_what_looks_alike_and_is_no_attention(way):
    class Other(nn.Module):
        def forward(self, x):
            found = NONE[way](x @ x.mT, x)
            return found.sum() + nn.functional.scaled_dot_product_attention(x, x, x)

    recording = looked_at(Other(), torch.randn(2, 3, 5, 4))
    assert [call.door for call in recording] == ["scaled_dot_product_attention"]


def test_halves_of_a_softmax_are_held_by_nobody_else():
    class Chooses(nn.Module):
        def forward(self, x):
            halves = [weakref.ref(x.exp()), weakref.ref(x.log_softmax(-1))]
            self.held = sum(one() is not None for one in halves)
            return over_its_sum((x @ x.mT).exp()) @ x

    with heedful.record(model := Chooses()) as recording:
        model(torch.randn(2, 3, 5, 4))
    assert (model.held, len(recording)) == (0, 1)


def test_heads_of_all_texts_in_one_axis_by_hand():
    class Flat(nn.Module):
        def forward(self, x):
            x = x.unflatten(-1, (3, 4)).transpose(1, 2).flatten(0, 1)
            return torch.bmm(torch.bmm(x, x.mT).softmax(-1), x)

    x = torch.randn(2, 5, 12)
    heads = x.unflatten(-1, (3, 4)).transpose(1, 2)
    shows(looked_at(Flat(), x), weighed(heads, heads))


def test_chosen_heads_of_gated_weights_and_a_record_on_the_disk(tmp_path):
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    recording = looked_at(Then(GATED["product"]), query, key, heads=[2, 0], budget=0)
    for one in (recording, heedful.load(recording.save(tmp_path / "r"))):
        shows(one, (weighed(query, key) * GATE)[:, [2, 0]])


TWO_AXES = {
    "mm": lambda weights, value: torch.mm(weights, value),
    "method": lambda weights, value: weights.mm(value),
    "keywords": lambda weights, value: torch.mm(mat2=value, input=weights),
    "on the right": lambda weights, value: value.mT.mm(weights.mT).mT,
    "a list": lambda weights, value: torch.einsum("qk,kd->qd", [weights, value]),
    "times, and a sum": lambda weights, value: (weights[..., None] * value).sum(dim=-2),
}


@pytest.mark.parametrize("way", TWO_AXES)
def test_products_of_tables_without_heads(way):
    class Plain(nn.Module):
        def forward(self, x, y):
            return TWO_AXES[way](torch.mm(x, y.mT).softmax(-1), y)

    x, y = torch.randn(5, 4), torch.randn(7, 4)
    shows(looked_at(Plain(), x, y), weighed(x[None, None], y[None, None]))


@pytest.mark.parametrize("way", ["rows", "softmax", "turned round", "dropout"])
@pytest.mark.parametrize("texts", [1, 2])
def test_heads_that_share_keys_and_stand_among_the_queries(texts, way):
    """Multi-query attention as GPTBigCode had it: (B, H · N, d) times one key head."""

    class Shared(nn.Module):
        def forward(self, query, key):
            B, H, N, _ = query.shape
            scores = (query.flatten(1, 2) @ key.mT).unflatten(1, (H, N))
            if way == "softmax":  # which knows nothing of heads
                weights = scores.flatten(1, 2).softmax(-1).unflatten(1, (H, N)).flatten(1, 2)
            else:
                weights = scores.softmax(-1)
                weights = nn.functional.dropout(weights, 0.4) if way == "dropout" else weights
                weights = weights.reshape(B, H * N, -1)
            if way == "turned round":
                return (key.mT @ weights.mT).mT.unflatten(1, (H, N))
            return (weights @ key).unflatten(1, (H, N))

    query, key = torch.randn(texts, 3, 5, 4), torch.randn(texts, 7, 4)
    found = looked_at(Shared(), query, key)
    map_ = weighed(query, key[:, None].expand(texts, 3, 7, 4))
    shows(found, map_)


def test_multi_head_attention_of_a_norm_called_twice_is_of_itself():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(12)
            self.attend = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x, y):
            return self.attend(self.norm(x), self.norm(y), self.norm(y))[0]

    model, x = Twice().eval(), torch.randn(2, 5, 12)
    with heedful.record(model) as recording:
        model(x, x)
        model(x, x.flip(1))  # as large, with other numbers
        model(x[:, :3], x)
    assert [call.kind for call in recording] == ["self", "cross", "cross"]
    normed = model.norm(x)
    _, maps = model.attend(normed, normed, normed, average_attn_weights=False)
    torch.testing.assert_close(recording[0].weights(), maps[0], atol=2e-6, rtol=0)
