"""Explanations of models: each number against its formula, states and logits against the model."""

import pytest
import torch
from recomputed_numbers import check_numbers, indices_in, masked_pairs

from heedful.errors import ArgumentError
from heedful.explain import explain_bert, explain_gpt, explain_seq2seq
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig

SENTENCES = [[3, 1, 4, 1, 5, 9, 2], [7]]


def redrawn(model):
    """Convert to double precision with random parameters: no bias is 0, no gain is 1."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise + (1.0 if parameter.ndim == 1 else 0.0))
    return model.double().eval()


def named(ids):
    return [f"t{id}" for id in ids]


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


def check_end(walk, logits):
    """Check the last two stages, and the answers."""
    *_, scores, probabilities = walk.stages
    torch.testing.assert_close(scores.numbers(), logits)
    torch.testing.assert_close(
        probabilities.numbers().double(), logits.softmax(-1), atol=1e-6, rtol=1e-5
    )
    for answer in walk.answers:
        best = logits[answer.position].topk(min(10, logits.shape[-1])).indices.tolist()
        assert [token.id for token in answer.likeliest] == best
        assert [token.token for token in answer.likeliest] == named(best)


def check_states(walk, name, states, layer):
    """Check the output of each block against `states`, (1, N, width) each."""
    for i, expected in enumerate(states):
        stage = walk.stage(f"{name} {i}") if i != layer else None
        if stage is None:
            side = name.partition(" ")[0] if " " in name else ""
            parts = [s for s in walk.sections if s.layer == layer and s.side == side]
            stage = parts[-1].stages[-1]
        torch.testing.assert_close(stage.numbers(), expected[0])


@pytest.mark.parametrize("ids", SENTENCES, ids=len)
@pytest.mark.parametrize("kind", GPTS)
def test_a_gpt_from_its_ids_to_its_probabilities(kind, ids):
    config = GPTConfig(
        vocabulary=17, context_length=11, width=24, heads=4, layers=3, hidden=20, **GPTS[kind]
    )
    model, ids = redrawn(GPT(config)), torch.tensor([ids])
    places = torch.arange(ids.shape[1])
    distance = places[:, None] - places
    for layer in (0, 2):
        walk = explain_gpt(model, ids, pieces=named, layer=layer, head=2)
        assert check_numbers(walk) > 60
        assert walk.sections[0].stage("ids").numbers()[:, 0].tolist() == ids[0].tolist()
        with torch.inference_mode():
            logits, states = model(ids)
        check_states(walk, "block", states[1:-1], layer)
        before, after = (state[0] for state in states[1:3])
        change = ((after - before).norm(dim=-1) / before.norm(dim=-1)).mean()
        assert f" {change:.2f} of its length" in walk.stage("block 1").sentence
        torch.testing.assert_close(walk.stage("final").numbers(), states[-1][0])
        check_end(walk, logits[0])
        assert [answer.position for answer in walk.answers] == [ids.shape[1] - 1]
        [pairs] = masked_pairs(walk)
        assert torch.equal(pairs, (distance < 0) | (distance >= (config.window or 99)))


def test_the_shapes_on_the_way_are_those_of_document_004():
    """[4, 16, 64] → [4, 16, 4, 16] → [4, 4, 16, 16], of one of its four sequences."""
    config = GPTConfig(vocabulary=30, context_length=16, width=64, heads=4, layers=2)
    walk = explain_gpt(GPT(config).eval(), torch.arange(16)[None], pieces=named)
    assert walk.stage("query").chain == ((1, 16, 64), (1, 16, 4, 16), (1, 4, 16, 16))
    assert walk.stage("joined").chain == ((1, 4, 16, 16), (1, 16, 4, 16), (1, 16, 64))
    assert walk.stage("inner").shape == (16, 256)
    assert walk.stage("logits").shape == (16, 30)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_norms_are_where_the_model_has_them(order):
    config = GPTConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=2, norm_order=order)
    walk = explain_gpt(GPT(config).eval(), torch.tensor([[1, 2, 3]]), pieces=named)
    for section in walk.sections[1:3]:
        names = [stage.name for stage in section.stages]
        place = 0 if order == "pre" else len(names) - 1
        assert names.index("normed") == place
        assert f"{order}-norm" in section.title
    assert ("by a norm (post-norm)" in walk.notes[1]) == (order == "post")


def test_rows_of_pairs_and_of_the_vocabulary_are_computed_on_request(monkeypatch):
    config = GPTConfig(vocabulary=9, context_length=4_000, width=8, heads=2, layers=1)
    model = GPT(config).eval()
    shapes = []
    real = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional,
        "linear",
        lambda *inputs: shapes.append(real(*inputs).shape) or real(*inputs),
    )
    walk = explain_gpt(model, torch.randint(9, (1, 4_000)), pieces=named)
    assert walk.stage("weights").shape == (2, 4_000, 4_000)
    assert walk.stage("weights").part([3_999], range(4_000)).sum(-1).allclose(torch.ones(2, 1))
    assert (4_000, 9) not in [tuple(shape[-2:]) for shape in shapes]


@pytest.mark.parametrize("masked_words", [True, False])
def test_a_bert_from_a_pair_to_the_words_at_its_masks(masked_words):
    config = BertConfig(
        vocabulary=17, context_length=12, width=12, heads=3, layers=2, hidden=20,
        masked_words=masked_words,
    )  # fmt: skip
    model = redrawn(Bert(config))
    ids, segments = torch.tensor([[2, 5, 4, 3, 4, 9, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    walk = explain_bert(model, ids, segments=segments, pieces=named, mask=4, layer=1)
    assert check_numbers(walk) > 60
    with torch.inference_mode():
        logits, states, *_ = model(ids, segments=segments)
    torch.testing.assert_close(walk.stage("input").numbers(), states[0][0])
    check_states(walk, "block", states[1:], 1)
    assert not masked_pairs(walk)
    if masked_words:
        check_end(walk, logits[0])
        assert [answer.position for answer in walk.answers] == [2, 4]
        return
    torch.testing.assert_close(walk.stages[-1].numbers(), states[-1][0])
    assert not walk.answers
    assert "no masked-word head" in walk.missing
    assert walk.answer(2) is None


def test_a_bert_without_a_mask_in_its_text_explains_how_to_write_it():
    model = Bert(BertConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=1)).eval()
    walk = explain_bert(
        model, torch.tensor([[2, 5, 3]]), segments=torch.zeros(1, 3).long(), pieces=named, mask=4
    )
    assert walk.missing.startswith("Write t4 in place of a word")
    assert not walk.answers
    assert len(walk.answer(1).likeliest) == 9


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(("layers", "decoder_layers", "layer"), [(2, 1, 0), (1, 2, 1)])
def test_an_encoder_and_a_decoder(order, layers, decoder_layers, layer):
    config = Seq2SeqConfig(
        vocabulary=13, context_length=9, width=12, heads=2, layers=layers, hidden=20,
        decoder_layers=decoder_layers, norm_order=order, shared=False, tied=False,
        activation="swiglu" if order == "pre" else "relu",
    )  # fmt: skip
    model = redrawn(Seq2Seq(config))
    source, target = torch.tensor([[1, 2, 3, 4, 12]]), torch.tensor([[11, 5, 6]])
    walk = explain_seq2seq(model, source, target, pieces=named, layer=layer, head=1)
    assert check_numbers(walk) > 60
    with torch.inference_mode():
        expected = model(source, target)
    check_states(walk, "encoder block", expected.encoder_states[1:-1], layer)
    check_states(walk, "decoder block", expected.hidden_states[1:-1], layer)
    torch.testing.assert_close(walk.stage("memory").numbers(), expected.encoder_states[-1][0])
    check_end(walk, expected.logits[0])
    later = torch.ones(3, 3).triu(1).bool()
    assert all(torch.equal(pairs, later) for pairs in masked_pairs(walk))
    kinds = [section.kind for section in walk.sections if section.side == "decoder"]
    assert ("cross-attention" in kinds) == (layer < decoder_layers)
    for section in walk.sections:
        if section.kind == "cross-attention":
            stage = section.stage("weights")
            assert (stage.rows, stage.columns) == ("tokens", "memory")


def test_formulas_of_tables_and_joined_heads_name_the_source():
    config = GPTConfig(
        vocabulary=17, context_length=8, width=12, heads=3, layers=1, positions="learned"
    )
    model = redrawn(GPT(config))
    walk = explain_gpt(model, torch.tensor([[3, 1, 4]]), pieces=named)
    row, column = indices_in(walk.stage("embeddings").formula_of(2, 7))
    assert walk.stage("embeddings").numbers()[2, 7] == model.tokens.weight[row, column]
    row, column = indices_in(walk.stage("positions").formula_of(2, 7))
    assert walk.stage("positions").numbers()[2, 7] == model.positions[row, column]
    number, head = indices_in(walk.stage("joined").formula_of(2, 7))
    assert walk.stage("joined").numbers()[2, 7] == walk.stage("context").numbers()[head, 2, number]


@pytest.mark.parametrize(
    ("tokens", "selection", "words"),
    [
        (3, {"layer": 2}, "layer 2; expected 0 to 1"),
        (3, {"head": 2}, "head 2; expected 0 to 1"),
        (9, {}, "context"),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_refused(tokens, selection, words):
    gpt = GPT(GPTConfig(vocabulary=9, context_length=8, width=8, heads=2, layers=2)).eval()
    with pytest.raises(ArgumentError, match=words):
        explain_gpt(gpt, torch.ones(1, tokens).long(), pieces=named, **selection)
