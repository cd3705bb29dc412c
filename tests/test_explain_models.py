"""A model's walk to its words, computed again in NumPy float64 from its parameters alone."""

import math

import numpy as np
import pytest
import torch
from written_out import check_numbers, in_words

from heedful.errors import ArgumentError
from heedful.explain import explain_bert, explain_gpt, explain_seq2seq
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig

SENTENCES = [[3, 1, 4, 1, 5, 9, 2], [7]]


def redrawn(model):
    """In double precision, with every parameter drawn anew: no bias is 0, no gain is 1."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise + (1.0 if parameter.ndim == 1 else 0.0))
    return model.double().eval()


def named(ids):
    return [f"t{id}" for id in ids]


def parameters(model):
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


class Numpy:
    """Layers by their formulas; `kept` are the numbers of the block that is opened."""

    def __init__(self, weights, norm, epsilon, activation):
        self.weights, self.norm_kind, self.epsilon = weights, norm, epsilon
        self.activation, self.kept = activation, {}

    def linear(self, name, x):
        bias = self.weights.get(f"{name}.bias", 0.0)
        return x @ self.weights[f"{name}.weight"].T + bias

    def norm(self, name, x):
        if self.norm_kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon)
        return x * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def attend(self, keep, query, key, value, causal, window=None):
        scores = np.einsum("hnd,hmd->hnm", query, key)
        scaled = scores / math.sqrt(query.shape[-1])
        hidden = np.triu(np.ones(scores.shape[-2:], bool), 1) & causal
        if window:
            hidden |= np.tril(np.ones(scores.shape[-2:], bool), -window)
        masked = np.where(hidden, -np.inf, scaled)
        raised = np.exp(masked - masked.max(-1, keepdims=True))
        shares = raised / raised.sum(-1, keepdims=True)
        context = np.einsum("hnm,hmd->hnd", shares, value)
        joined = np.concatenate(list(context), axis=-1)
        keep |= {"scores": scores, "scaled": scaled, "weights": shares, "context": context}
        keep |= {"joined": joined, **({"masked": masked} if causal else {})}
        return joined

    def self_attention(
        self, keep, name, x, heads, groups, *, causal, qk_norm=False, rotary=False, window=None
    ):
        projected = self.linear(f"{name}.projection", x)
        width = projected.shape[-1] // (heads + 2 * groups)
        cut = projected.reshape(len(x), -1, width).transpose(1, 0, 2)
        query, key, value = cut[:heads], cut[heads : heads + groups], cut[heads + groups :]
        keep |= {"query": query, "key": key, "value": value}
        if qk_norm:
            kind, self.norm_kind = self.norm_kind, "rms"
            query, key = (
                self.norm(f"{name}.{what}_norm", part)
                for what, part in (("query", query), ("key", key))
            )
            self.norm_kind = kind
            keep |= {"normed query": query, "normed key": key}
        if rotary:
            half = width // 2
            angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
            turn = np.exp(1j * angles)
            turned = [(part[..., :half] + 1j * part[..., half:]) * turn for part in (query, key)]
            query, key = (np.concatenate([z.real, z.imag], -1) for z in turned)
            keep |= {"rotated query": query, "rotated key": key}
        shared = [np.repeat(part, heads // groups, axis=0) for part in (key, value)]
        output = self.linear(f"{name}.output", self.attend(keep, query, *shared, causal, window))
        keep["output"] = output
        return output

    def cross_attention(self, keep, name, x, memory, heads):
        query = self.linear(f"{name}.query", x)
        key, value = np.split(self.linear(f"{name}.memory", memory), 2, axis=-1)
        cut = [
            part.reshape(len(part), heads, -1).transpose(1, 0, 2) for part in (query, key, value)
        ]
        keep |= dict(zip(("query", "key", "value"), cut, strict=True))
        output = self.linear(f"{name}.output", self.attend(keep, *cut, False))
        keep["output"] = output
        return output

    def feed(self, keep, name, x):
        inner = self.linear(f"{name}.enter", x)
        if self.activation in GATES:
            gate, up = np.split(inner, 2, axis=-1)
            inner = GATES[self.activation](gate) * up
            keep |= {"gate": gate, "up": up, "gated": inner}
        else:
            keep["inner"] = inner
            inner = ACTIVATIONS[self.activation](inner)
            keep["activated"] = inner
        fed = self.linear(f"{name}.output", inner)
        keep["fed"] = fed
        return fed

    def sublayer(self, keep, name, x, inner, order, what):
        """The states after one layer with its norm and its sum."""
        reads = self.norm(name, x) if order == "pre" else x
        total = x + inner(reads)
        keep[f"sum after {what}"] = total
        after = total if order == "pre" else self.norm(name, total)
        keep["normed"] = reads if order == "pre" else after
        return after


erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
GATES = {
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": ACTIVATIONS["gelu"],
    "reglu": ACTIVATIONS["relu"],
}


def sines(count, width):
    angles = np.arange(count)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(count, width)


def softmax(logits):
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def equal(section, expected):
    """All numbers of a section; each that is expected is there."""
    for name, numbers in expected.items():
        stage = section.stage(name)
        assert stage.shape == numbers.shape, name
        np.testing.assert_allclose(stage.numbers().numpy(), numbers, atol=1e-5, err_msg=name)


GPTS = {
    "document 004": {
        "positions": "sinusoidal", "norm_order": "post", "norm": "layer", "activation": "relu",
        "qk_norm": False, "bias": True, "logit_bias": True, "tied": False,
    },
    "zero to hero": {
        "positions": "sinusoidal", "norm_order": "pre", "norm": "layer", "activation": "relu",
        "qk_norm": False, "bias": True, "tied": False,
    },
    "modern": {"kv_heads": 2},
    "gpt2": {
        "positions": "learned", "norm": "layer", "activation": "gelu_tanh", "qk_norm": False,
        "bias": True, "attention_bias": True,
    },
    "llama": {"activation": "swiglu", "qk_norm": False, "kv_heads": 1, "tied": False},
    "mistral": {
        "activation": "swiglu", "qk_norm": False, "kv_heads": 2, "window": 3, "head_width": 10,
    },
    "gate of gelu": {"activation": "geglu", "tied": False},
    "gate of relu": {"activation": "reglu", "bias": True},
    "post, rotary": {"norm_order": "post", "attention_bias": True, "activation": "gelu"},
}  # fmt: skip


@pytest.mark.parametrize("ids", SENTENCES, ids=len)
@pytest.mark.parametrize("kind", GPTS)
def test_a_gpt_from_its_ids_to_its_probabilities(kind, ids):
    config = GPTConfig(
        vocabulary=17, context_length=11, width=24, heads=4, layers=3, hidden=20, **GPTS[kind]
    )
    model = redrawn(GPT(config))
    for layer in (0, 2):
        found = explain_gpt(model, torch.tensor([ids]), pieces=named, layer=layer, head=2)
        expected, attention, feed, logits = numpy_gpt(model, ids, layer)
        sections = [section for section in found.sections if section.layer == layer]
        equal(sections[0], attention)
        equal(sections[1], feed)
        for name, numbers in expected.items():
            stage = found.stage(name)
            np.testing.assert_allclose(stage.numbers().numpy(), numbers, atol=1e-5, err_msg=name)
        end = found.sections[-1]
        equal(end, {"logits": logits})
        np.testing.assert_allclose(
            end.stage("probabilities").numbers().numpy(), softmax(logits), atol=1e-5
        )
        [answer] = found.answers
        best = np.argsort(-logits[-1])[:10]
        assert [one.id for one in answer.likeliest] == best.tolist()
        assert [one.token for one in answer.likeliest] == named(best)
        assert answer.place == len(ids) - 1
        assert check_numbers(found) > 30


def numpy_gpt(model, ids, layer):
    """What is in the block's two sections, what stands before and between, and the logits."""
    config = model.config
    net = Numpy(parameters(model), config.norm, config.norm_epsilon, config.activation)
    x = net.weights["tokens.weight"][ids]
    expected = {"embeddings": x}
    if config.positions != "rotary":
        table = net.weights["positions"] if config.positions == "learned" else sines(11, 24)
        x = x + table[: len(ids)]
        expected |= {"positions": table[: len(ids)], "input": x}
    kept = {}
    groups = config.kv_heads or config.heads
    for i in range(config.layers):
        attention, feed = {}, {}
        x = net.sublayer(
            attention, f"blocks.{i}.attend_norm", x,
            lambda reads, i=i, keep=attention: net.self_attention(
                keep, f"blocks.{i}.attend", reads, config.heads, groups, causal=True,
                qk_norm=config.qk_norm, rotary=config.positions == "rotary",
                window=config.window,
            ), config.norm_order, "attention",
        )  # fmt: skip
        x = net.sublayer(
            feed, f"blocks.{i}.feed_norm", x,
            lambda reads, i=i, keep=feed: net.feed(keep, f"blocks.{i}.feed", reads),
            config.norm_order, "feed-forward",
        )  # fmt: skip
        kept[i] = attention, feed
        if i != layer:
            expected[f"block {i}"] = x
    final = net.norm("norm", x) if config.norm_order == "pre" else x
    head = "tokens.weight" if config.tied else "head.weight"
    logits = final @ net.weights[head].T + net.weights.get("head.bias", 0.0)
    return expected | {"final": final}, *kept[layer], logits


@pytest.mark.parametrize("kind", GPTS)
def test_logits_and_states_are_those_of_the_model_itself(kind):
    config = GPTConfig(vocabulary=19, context_length=8, width=16, heads=2, layers=2, **GPTS[kind])
    model = GPT(config).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    found = explain_gpt(model, ids, pieces=named, layer=1)
    with torch.inference_mode():
        logits, states = model(ids)
    torch.testing.assert_close(found.stage("logits").numbers(), logits[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.stage("final").numbers(), states[-1][0])
    torch.testing.assert_close(found.stage("block 0").numbers(), states[1][0])
    shares = found.stage("probabilities")
    torch.testing.assert_close(shares.part([2], [0, 7]), logits[0, [2]].softmax(-1)[:, [0, 7]])
    assert found.sections[0].stage("ids").numbers()[:, 0].tolist() == [3, 1, 4, 1, 5]
    assert not any(module._forward_hooks for module in model.modules())


def test_the_shapes_on_the_way_are_those_of_document_004():
    """[4, 16, 64] → [4, 16, 4, 16] → [4, 4, 16, 16], of one of its four lines."""
    config = GPTConfig(vocabulary=30, context_length=16, width=64, heads=4, layers=2)
    found = explain_gpt(GPT(config).eval(), torch.arange(16)[None], pieces=named)
    assert found.stage("query").chain == ((1, 16, 64), (1, 16, 4, 16), (1, 4, 16, 16))
    assert found.stage("joined").chain == ((1, 4, 16, 16), (1, 16, 4, 16), (1, 16, 64))
    assert found.stage("inner").shape == (16, 256)
    assert found.stage("logits").shape == (16, 30)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_norms_stand_where_the_model_has_them(order):
    config = GPTConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=2, norm_order=order)
    found = explain_gpt(GPT(config).eval(), torch.tensor([[1, 2, 3]]), pieces=named)
    for section in found.sections[1:3]:
        names = [stage.name for stage in section.stages]
        place = 0 if order == "pre" else len(names) - 1
        assert names.index("normed") == place
        assert f"{order}-norm" in section.title
    assert ("2017 paper (post-norm)" in found.notes[1]) == (order == "post")


def test_no_row_of_pairs_or_words_is_made_that_nobody_asked_for(monkeypatch):
    config = GPTConfig(vocabulary=9, context_length=4_000, width=8, heads=2, layers=1)
    model = GPT(config).eval()
    made = []
    real = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional,
        "linear",
        lambda *given: made.append(real(*given).shape) or real(*given),
    )
    found = explain_gpt(model, torch.randint(9, (1, 4_000)), pieces=named)
    assert found.stage("weights").shape == (2, 4_000, 4_000)
    assert found.stage("weights").part([3_999], range(4_000)).sum(-1).allclose(torch.ones(2, 1))
    assert (4_000, 9) not in [tuple(shape[-2:]) for shape in made]


@pytest.mark.parametrize("masked_words", [True, False])
def test_a_bert_from_a_pair_to_the_words_at_its_masks(masked_words):
    config = BertConfig(
        vocabulary=17, context_length=12, width=12, heads=3, layers=2, hidden=20,
        masked_words=masked_words,
    )  # fmt: skip
    model = redrawn(Bert(config))
    ids, segments = [2, 5, 4, 3, 4, 9, 3], [0, 0, 0, 0, 1, 1, 1]
    found = explain_bert(
        model, torch.tensor([ids]), segments=torch.tensor([segments]), pieces=named, mask=4, layer=1
    )
    net = Numpy(parameters(model), "layer", 1e-12, "gelu")
    w = net.weights
    parts = w["tokens.weight"][ids], w["segments.weight"][segments], w["positions"][: len(ids)]
    x = net.norm("norm", sum(parts))
    arrival = dict(zip(("embeddings", "segments", "positions"), parts, strict=True))
    equal(found.sections[0], arrival | {"sum": sum(parts), "input": x})
    for i in range(2):
        attention, feed = {}, {}
        x = net.sublayer(
            attention, f"blocks.{i}.attend_norm", x,
            lambda reads, i=i, keep=attention: net.self_attention(
                keep, f"blocks.{i}.attend", reads, 3, 3, causal=False
            ), "post", "attention",
        )  # fmt: skip
        x = net.sublayer(
            feed, f"blocks.{i}.feed_norm", x,
            lambda reads, i=i, keep=feed: net.feed(keep, f"blocks.{i}.feed", reads),
            "post", "feed-forward",
        )  # fmt: skip
        if i == 0:
            np.testing.assert_allclose(found.stage("block 0").numbers().numpy(), x, atol=1e-5)
    equal(found.sections[2], attention)
    equal(found.sections[3], feed)
    assert not any(stage.name == "masked" for stage in found.stages)
    assert check_numbers(found) > 20
    if not masked_words:
        np.testing.assert_allclose(found.stages[-1].numbers().numpy(), x, atol=1e-5)
        assert not found.answers
        assert "no masked-word head" in found.missing
        assert found.answer(2) is None
        return
    inner = ACTIVATIONS["gelu"](net.linear("head.transform", x))
    logits = net.norm("head.norm", inner) @ w["tokens.weight"].T + w["head.output.bias"]
    equal(found.sections[-1], {"logits": logits})
    assert [answer.place for answer in found.answers] == [2, 4]
    for answer in found.answers:
        assert answer.likeliest[0].id == logits[answer.place].argmax()
        likely = softmax(logits)[answer.place].max()
        assert answer.likeliest[0].probability == pytest.approx(likely, abs=1e-5)


def test_a_bert_without_a_mask_in_its_text_says_how_to_write_one():
    model = Bert(BertConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=1)).eval()
    found = explain_bert(
        model, torch.tensor([[2, 5, 3]]), segments=torch.zeros(1, 3).long(), pieces=named, mask=4
    )
    assert found.missing.startswith("Write t4 for a word")
    assert not found.answers
    assert len(found.answer(1).likeliest) == 9


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(("layers", "decoder_layers", "layer"), [(2, 1, 0), (1, 2, 1)])
def test_an_encoder_and_a_decoder(order, layers, decoder_layers, layer):
    config = Seq2SeqConfig(
        vocabulary=13, context_length=9, width=12, heads=2, layers=layers, hidden=20,
        decoder_layers=decoder_layers, norm_order=order, shared=False, tied=False,
        activation="swiglu" if order == "pre" else "relu",
    )  # fmt: skip
    model = redrawn(Seq2Seq(config))
    source, target = [1, 2, 3, 4, 12], [11, 5, 6]
    found = explain_seq2seq(
        model, torch.tensor([source]), torch.tensor([target]), pieces=named, layer=layer, head=1
    )
    net = Numpy(parameters(model), "layer", 1e-5, config.activation)
    memory, read = numpy_side(net, "encoder", layers, source, order, None)
    x, written = numpy_side(net, "decoder", decoder_layers, target, order, memory)
    logits = x @ net.weights["head.weight"].T
    sections = {section.title.partition(",")[0]: section for section in found.sections}
    for side, name, kept, count in (
        ("Encoder", "encoder", read, layers), ("Decoder", "decoder", written, decoder_layers)
    ):  # fmt: skip
        if layer >= count:
            assert sections[f"{side} block 0 of {count}"].kind == "blocks"
            continue
        masked = "masked " if name == "decoder" else ""
        start = f"{side} block {layer} of {count}"
        equal(sections[f"{start}: {masked}self-attention"], kept[layer][0])
        equal(sections[f"{start}: feed-forward"], kept[layer][-1])
        if name == "decoder":
            equal(sections[f"{start}: cross-attention"], kept[layer][1])
            stage = sections[f"{start}: cross-attention"].stage("weights")
            assert (stage.rows, stage.columns) == ("tokens", "memory")
    np.testing.assert_allclose(found.stage("memory").numbers().numpy(), memory, atol=1e-5)
    equal(found.sections[-1], {"logits": logits})
    assert [answer.likeliest[0].id for answer in found.answers] == logits.argmax(-1).tolist()
    assert check_numbers(found) > 30
    with torch.inference_mode():
        own = model(torch.tensor([source]), torch.tensor([target])).logits[0]
    torch.testing.assert_close(found.stage("logits").numbers(), own, atol=1e-5, rtol=0)


def numpy_side(net, side, layers, ids, order, memory):
    """The last states of an encoder or a decoder, and what its blocks' sections hold."""
    table = net.weights["source_tokens.weight" if memory is None else "target_tokens.weight"]
    x = math.sqrt(12) * table[ids] + sines(len(ids), 12)
    kept = {}
    for i in range(layers):
        name, parts = f"{side}.{i}", [{}, {}, {}]
        x = net.sublayer(
            parts[0], f"{name}.attend_norm", x,
            lambda reads, name=name, keep=parts[0]: net.self_attention(
                keep, f"{name}.attend", reads, 2, 2, causal=memory is not None
            ), order, "attention",
        )  # fmt: skip
        if memory is not None:
            x = net.sublayer(
                parts[1], f"{name}.cross_norm", x,
                lambda reads, name=name, keep=parts[1]: net.cross_attention(
                    keep, f"{name}.cross", reads, memory, 2
                ), order, "cross-attention",
            )  # fmt: skip
        x = net.sublayer(
            parts[2], f"{name}.feed_norm", x,
            lambda reads, name=name, keep=parts[2]: net.feed(keep, f"{name}.feed", reads),
            order, "feed-forward",
        )  # fmt: skip
        kept[i] = parts
    return (net.norm(f"{side}_norm", x) if order == "pre" else x), kept


def test_a_table_and_the_joined_heads_say_where_a_number_stands():
    config = GPTConfig(
        vocabulary=17, context_length=8, width=12, heads=3, layers=1, positions="learned"
    )
    model = redrawn(GPT(config))
    found = explain_gpt(model, torch.tensor([[3, 1, 4]]), pieces=named)
    row, column = in_words(found.stage("embeddings").formula_of(2, 7))
    assert found.stage("embeddings").numbers()[2, 7] == model.tokens.weight[row, column]
    row, column = in_words(found.stage("positions").formula_of(2, 7))
    assert found.stage("positions").numbers()[2, 7] == model.positions[row, column]
    number, head = in_words(found.stage("joined").formula_of(2, 7))
    assert (
        found.stage("joined").numbers()[2, 7] == found.stage("context").numbers()[head, 2, number]
    )


@pytest.mark.parametrize(
    ("where", "words"), [({"layer": 2}, "layer 0 to 1"), ({"head": 2}, "head 0 to 1")]
)
def test_what_a_model_has_not_is_refused(where, words):
    ids = torch.tensor([[1, 2, 3]])
    gpt = GPT(GPTConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=2)).eval()
    bert = Bert(BertConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=2)).eval()
    pairs = Seq2Seq(Seq2SeqConfig(vocabulary=9, context_length=8, width=8, heads=2)).eval()
    calls = [
        lambda: explain_gpt(gpt, ids, pieces=named, **where),
        lambda: explain_bert(bert, ids, segments=0 * ids, pieces=named, **where),
        lambda: explain_seq2seq(pairs, ids, ids, pieces=named, **where),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=words):
            call()
    with pytest.raises(ArgumentError, match="context"):
        explain_gpt(gpt, torch.ones(1, 9).long(), pieces=named)
