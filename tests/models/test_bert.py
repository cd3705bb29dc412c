"""BERT checkpoints of transformers with random parameters: heedful computes the same."""

import json

import pytest
import torch
from redrawn_parameters import redrawn
from safetensors.torch import load_file, save_file

from heedful.errors import ArgumentError, RunError
from heedful.models import Bert, BertConfig, export_model, load_model, loss, parameters_of
from heedful.models.huggingface.parameter_names import BERT

transformers = pytest.importorskip("transformers")

VOCABULARY, CONTEXT = 101, 40
TINY = {"vocabulary": 37, "context_length": 19, "width": 20, "layers": 3, "heads": 5, "hidden": 33}


def bert(kind="BertForMaskedLM", **changes):
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 52,
        "max_position_embeddings": CONTEXT,
    }
    return redrawn(getattr(transformers, kind)(transformers.BertConfig(**{**config, **changes})))


@pytest.fixture
def saved(tmp_path):
    """A tiny BERT saved by transformers, and heedful's from the same directory."""

    def call(kind="BertForMaskedLM", **changes):
        theirs = bert(kind, **changes)
        theirs.save_pretrained(tmp_path)
        return theirs, load_model(tmp_path)

    return call


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def same_everywhere(ours, theirs, ids, segments=None, keep=None):
    """Compare all hidden states at the real tokens, and the outputs that both models have."""
    real = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    mask = None if keep is None else keep.long()
    with torch.inference_mode():
        mine = ours(ids, segments=segments, keep=keep)
        expected = theirs(
            ids, token_type_ids=segments, attention_mask=mask, output_hidden_states=True
        )
    assert len(mine.hidden_states) == len(expected.hidden_states) == ours.config.layers + 1
    for a, b in zip(mine.hidden_states, expected.hidden_states, strict=True):
        close(a[real], b[real])
    names = {"logits": "logits", "prediction_logits": "logits", "pooler_output": "pooled"}
    compared = [(names[name], value) for name, value in expected.items() if name in names]
    assert compared
    for name, expected in compared:
        actual = getattr(mine, name)
        close(*((actual[real], expected[real]) if name == "logits" else (actual, expected)))


def batch(rows=3, tokens=13):
    ids = torch.randint(VOCABULARY, (rows, tokens))
    starts = torch.randint(1, tokens, (rows, 1))
    return ids, (torch.arange(tokens) >= starts).long()


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("BertForMaskedLM", {"head"}),
        ("BertModel", {"pooler"}),
        ("BertForPreTraining", {"head", "pooler"}),
    ],
)
def test_each_class_with_the_parts_it_has(kind, parts, saved):
    theirs, ours = saved(kind)
    for part in ("head", "pooler"):
        assert (getattr(ours, part) is not None) == (part in parts)
    same_everywhere(ours, theirs, *batch())
    same_everywhere(ours, theirs, batch()[0])  # segments are 0 by default
    output = ours(*batch()[:1])
    assert (output.logits is None) == ("head" not in parts)
    assert (output.pooled is None) == ("pooler" not in parts)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 5, "num_attention_heads": 12},
        {"hidden_act": "relu"},
        {"hidden_act": "gelu_new"},
        {"layer_norm_eps": 1e-2},
        {"type_vocab_size": 5},
        {"pad_token_id": None},
    ],
    ids=str,
)
def test_settings_that_change_the_numbers(changes, saved):
    theirs, ours = saved(**changes)
    same_everywhere(ours, theirs, *batch())


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(side, saved):
    theirs, ours = saved()
    ids, segments = batch()
    lengths = torch.tensor([13, 4, 7])[:, None]
    positions = torch.arange(13)[None]
    keep = positions >= 13 - lengths if side == "left" else positions < lengths
    same_everywhere(ours, theirs, ids, segments, keep)


def test_old_names_positions_and_copies_of_the_table(tmp_path):
    """The names of the first checkpoints: gamma and beta, a buffer, a separate decoder."""
    theirs = bert("BertForPreTraining")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(path).items()
    }
    assert sum(name.endswith(("gamma", "beta")) for name in tensors) == 2 * (1 + 2 * 3 + 1)
    tensors |= {
        "bert.embeddings.position_ids": torch.arange(CONTEXT)[None],
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }
    save_file(tensors, path)
    description = json.loads((tmp_path / "config.json").read_text())
    description["architectures"] = ["BertForMaskedLM"]  # the class of one of the heads
    (tmp_path / "config.json").write_text(json.dumps(description))
    same_everywhere(load_model(tmp_path), theirs, *batch())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shards_of_each_type(dtype, tmp_path):
    """Query, key and value weights, which heedful joins, may be in different shards."""
    theirs = bert().to(dtype)
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    layer = "bert.encoder.layer.1.attention.self"
    assert len({index[f"{layer}.{part}.weight"] for part in ("query", "key", "value")}) > 1
    ours = load_model(tmp_path)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    same_everywhere(load_model(tmp_path, dtype=torch.float32), theirs.float(), *batch())


def test_one_training_step_gives_the_same_loss_and_gradients(saved):
    """Id 0 occurs in the input: its input embedding gets no gradient, its output row does."""
    theirs, ours = saved(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ids, segments = batch(3, 17)
    ids[:, 2] = 0
    keep = torch.arange(17)[None] < torch.tensor([17, 12, 6])[:, None]
    labels = torch.where((torch.rand(ids.shape) < 0.4) & keep, ids, -100)
    expected = theirs.train()(
        ids, token_type_ids=segments, attention_mask=keep.long(), labels=labels
    ).loss
    mine = loss(ours.train()(ids, segments=segments, keep=keep).logits, labels)
    torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-6)
    expected.backward()
    mine.backward()
    gradient = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    compared = 0
    for name, parameter in ours.named_parameters():
        for their_name, mine in BERT.entry(name).to_checkpoint(parameter.grad).items():
            close(mine, gradient[their_name])
            compared += 1
    assert compared == len(gradient)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"pooler": False}, "BertForMaskedLM"),
        ({"masked_words": False}, "BertModel"),
    ],
    ids=str,
)
def test_transformers_opens_what_is_exported(parts, kind, tmp_path):
    changes = {"dropout": 0.3, "attention_dropout": 0.2, "activation": "gelu_tanh", "padding": 5}
    ours = redrawn(Bert(BertConfig(**TINY, **changes, norm_epsilon=1e-3, **parts)))
    export_model(ours, tmp_path)
    theirs, report = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.architectures == [kind]
    ids = torch.randint(37, (2, 17))
    same_everywhere(ours, theirs.eval(), ids, torch.randint(2, ids.shape))
    reloaded = load_model(tmp_path)
    assert reloaded.config == ours.config
    for name, parameter in parameters_of(ours).items():
        assert torch.equal(parameters_of(reloaded)[name], parameter)


@pytest.mark.parametrize("padded", [False, True])
def test_the_steps_are_those_of_the_model(padded, saved):
    """Each layer's maps equal transformers' maps and reproduce the recorded output."""
    theirs, ours = saved("BertModel")
    ids, segments = batch(2, 11)
    keep = torch.arange(11)[None] < torch.tensor([[11], [8]]) if padded else None
    theirs.set_attn_implementation("eager")
    with torch.inference_mode():
        maps = theirs(
            ids,
            token_type_ids=segments,
            attention_mask=None if keep is None else keep.long(),
            output_attentions=True,
        ).attentions
        steps = list(ours.steps(ids, segments=segments, keep=keep))
    assert len(steps) == len(maps) == 3
    for mine, expected in zip(steps, maps, strict=True):
        assert mine.weights.shape == (2, 4, 11, 11)
        close(mine.weights, expected)


def test_new_weights_are_those_of_the_paper():
    for width, deviation in ((768, 0.02), (48, 0.08)):
        model = Bert(BertConfig(vocabulary=999, width=width, layers=2, heads=4, padding=3))
        assert float(model.tokens.weight.detach().std()) == pytest.approx(deviation, rel=0.05)
    assert not model.tokens.weight[3].any()
    assert not model.blocks[1].attend.projection.bias.any()
    assert model.blocks[1].feed_norm.weight.unique().tolist() == [1.0]
    assert 0 < float(model.positions.detach().std()) < 0.12


def test_invalid_input_is_a_one_line_error():
    model = Bert(BertConfig(**TINY))
    ids = torch.zeros(2, 6, dtype=torch.long)
    for call, words in (
        (lambda: model(ids + 37), "text ids from 37 to 37; expected 0 to 36"),
        (lambda: model(ids, segments=ids + 2), "segments from 2 to 2; expected 0 to 1"),
        (lambda: model(ids, segments=ids[:1]), r"segments \(1, 6\)"),
        (lambda: model(ids, keep=torch.ones(2, 5, dtype=torch.bool)), r"keep \(2, 5\)"),
    ):
        with pytest.raises(ArgumentError, match=words):
            call()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "heedful.record"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ({"hidden_act": "silu"}, "silu"),
        ({"num_attention_heads": 5}, "5 heads for a width of 24"),
    ],
    ids=str,
)
def test_errors_name_unsupported_settings(config, words, saved, tmp_path):
    saved()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with pytest.raises(RunError, match=words):
        load_model(tmp_path)
