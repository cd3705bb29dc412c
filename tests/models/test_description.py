"""`describe` compared with the parameters and shapes of the model itself."""

import json

import pytest
import torch
from safetensors.torch import save_file

from heedful.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    describe,
    describe_files,
)

B, N, M = 3, 5, 7
SMALL = {"vocabulary": 23, "width": 12, "heads": 3, "layers": 2, "context_length": 11}
MODELS = {
    "gpt": lambda: GPT(GPTConfig(**SMALL)),
    "grouped": lambda: GPT(GPTConfig(**{**SMALL, "heads": 6}, kv_heads=2, head_width=4, window=3)),
    "post": lambda: GPT(
        GPTConfig(**SMALL, norm_order="post", positions="learned", tied=False, logit_bias=True)
    ),
    "swiglu": lambda: GPT(GPTConfig(**SMALL, activation="swiglu", hidden=17, bias=True)),
    "convolved": lambda: GPT(GPTConfig(**SMALL, convolution=2)),
    "bert": lambda: Bert(BertConfig(**SMALL)),
    "bare bert": lambda: Bert(BertConfig(**SMALL, pooler=False, masked_words=False)),
    "pairs": lambda: Seq2Seq(Seq2SeqConfig(**SMALL, decoder_layers=1)),
    "pairs, post": lambda: Seq2Seq(
        Seq2SeqConfig(**SMALL, norm_order="post", shared=False, tied=False, activation="swiglu")
    ),
}


def hooked_shapes(model):
    """Return the shapes of a forward pass, recorded by hooks on the modules."""
    shapes = []

    def add(name, *tensors):
        shapes.append((name, [tuple(tensor.shape) for tensor in tensors]))

    def heads(name):
        def hook(layer, inputs, keywords, out):
            options = {n: keywords[n] for n in ("rotary",) if keywords.get(n) is not None}
            query, key, value = layer.project(*inputs, **options)
            assert key.shape == value.shape
            add(name, query, key, query @ key.new_zeros(key.shape[2], query.shape[3]).T)

        return hook

    def block(part, within):
        for name, layer in (("", part.attend), ("cross-", getattr(part, "cross", None))):
            if layer is not None:
                key = (within, name + "joined")
                layer.register_forward_hook(heads((within, name + "heads")), with_kwargs=True)
                layer.output.register_forward_hook(
                    lambda _, inputs, out, key=key: add(key, inputs[0], out)
                )
        part.feed.register_forward_hook(lambda _, inputs, out: add((within, "fed"), inputs[0], out))
        part.feed.output.register_forward_hook(
            lambda _, inputs, out: add((within, "hidden"), inputs[0])
        )

    ids = torch.randint(20, (B, N))
    if isinstance(model, Seq2Seq):
        block(model.encoder[0], "encoder block")
        block(model.decoder[0], "decoder block")
        output = model(torch.randint(20, (B, M)), ids)
    else:
        block(model.blocks[0], "block")
        output = model(ids)
    return dict(shapes), output


def with_sizes(shape):
    return tuple({"B": B, "N": N, "M": M}.get(size, size) for size in shape)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_shapes_are_the_models_own(name):
    model = MODELS[name]().eval()
    info = describe(model)
    assert info.parameters == sum(p.numel() for p in model.parameters())
    for part in info.parts:
        if part.parts:
            assert part.parameters == sum(child.parameters for child in part.parts)
            for child in part.parts:
                assert child.parameters >= sum(inner.parameters for inner in child.parts)
    hooks, output = hooked_shapes(model)
    for step_shapes in info.shape_steps:
        shapes = [with_sizes(shape) for shape in step_shapes.shapes]
        within, step = step_shapes.within, step_shapes.step
        cross = "cross-" if step.startswith("cross-") else ""
        heads = hooks.get((within, cross + "heads"))
        if step.endswith("query"):
            assert shapes[-1] == heads[0]
            batch, tokens, head_count, width = shapes[1]
            assert (batch, head_count, tokens, width) == heads[0]
        elif step.endswith("key and value"):
            assert shapes[-1] == heads[1]
        elif step.endswith("scores and weights"):
            assert shapes == [heads[2]]
        elif step.endswith("context"):
            assert (shapes[0][:3], shapes[-1]) == (heads[0][:3], hooks[within, cross + "joined"][0])
        elif step.endswith("output"):
            assert shapes == [hooks[within, cross + "joined"][1]]
        elif step == "feed-forward":
            entry, out = hooks[within, "fed"]
            assert shapes == [entry, *hooks[within, "hidden"], out]
        elif step == "logits":
            assert shapes == [tuple(output.logits.shape)]
        elif step == "pooled":
            assert shapes == [tuple(output.pooled.shape)]
        elif step == "memory":
            assert shapes == [tuple(output.encoder_states[-1].shape)]
        elif step == "ids":
            assert shapes == [(B, N)]


@pytest.mark.parametrize(("name", "order"), [("gpt", "pre"), ("post", "post"), ("bert", "post")])
def test_the_order_of_norms(name, order):
    info = describe(MODELS[name]())
    assert info.norm_order == order
    steps = [step_shapes.step for step_shapes in info.shape_steps if step_shapes.within]
    assert (steps[0] == "norm") == (order == "pre")
    assert (steps[-1] == "norm") == (order == "post")
    assert ("final norm" in [part.name for part in info.parts]) == (order == "pre")


def test_a_short_convolution_is_described_between_embeddings_and_blocks():
    info = describe(MODELS["convolved"]())
    assert ("short convolution", 2 * 12) in [(part.name, part.parameters) for part in info.parts]
    steps = [step_shapes.step for step_shapes in info.shape_steps]
    assert steps[:4] == ["ids", "embeddings", "short convolution", "norm"]


def test_a_shared_table_counts_once_with_a_note():
    tied, untied = describe(MODELS["gpt"]()), describe(MODELS["post"]())
    assert (tied.parts[-1].parameters, tied.parts[-1].note) == (0, "shares the token table")
    assert (untied.parts[-1].parameters, untied.parts[-1].note) == (12 * 23 + 23, "")


def test_files_of_another_architecture(tmp_path):
    tensors = {f"model.layers.{i}.mlp.weight": torch.ones(3, 5) for i in range(4)}
    tensors |= {f"odd.{i}.weight": torch.ones(i + 1) for i in range(3)}
    tensors |= {"model.embed.weight": torch.ones(7, 3), "head.weight": torch.ones(7)}
    tensors["model.places"] = torch.arange(9)  # not trained
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "other", "size": 3, "inner": {"heads": 2}, "left": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    info = describe_files(tmp_path, "OtherModel")
    parts = {part.name: (part.times, part.parameters) for part in info.parts}
    assert parts == {
        "model.layers": (4, 15), "odd": (1, 6), "model.embed": (1, 21), "head": (1, 7)
    }  # fmt: skip
    assert info.parameters == 60 + 6 + 21 + 7
    assert [setting[:2] for setting in info.settings] == [
        ("model_type", "other"), ("size", 3), ("inner.heads", 2)
    ]  # fmt: skip
    assert (info.kind, info.norm_order, info.shape_steps) == ("OtherModel", None, ())
