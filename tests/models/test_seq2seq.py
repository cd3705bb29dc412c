"""The encoder–decoder compared with torch's `nn.Transformer`, with the same weights."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from heedful.errors import ArgumentError
from heedful.models import Seq2Seq, Seq2SeqConfig, loss
from heedful.models.parameters import parameters_of
from heedful.ops.positions import sinusoidal

SMALL = {"vocabulary": 23, "context_length": 13, "width": 12, "layers": 2, "decoder_layers": 3,
         "heads": 3}  # fmt: skip
VARIANTS = [
    {},
    {"norm_order": "post", "activation": "gelu", "hidden": 17},
    {"shared": False, "tied": False},
    {"shared": False, "norm_order": "post"},
    {"norm": "rms", "activation": "swiglu", "tied": False},
]
TORCH_VARIANTS = VARIANTS[:4]  # torch has neither RMSNorm nor SwiGLU in its transformer
SOURCES, TARGETS = (11, 7, 1), (5, 9, 3)  # lengths


def tiny(**changes):
    model = Seq2Seq(Seq2SeqConfig(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            parameter.normal_(std=0.4)
    return model


def torch_model(model):
    """Return nn.Transformer's encoder and decoder with the weights of a heedful model."""
    config = model.config
    shape = {
        "d_model": config.width,
        "nhead": config.heads,
        "dim_feedforward": config.hidden or 4 * config.width,
        "dropout": 0.0,
        "activation": config.activation,
        "batch_first": True,
        "norm_first": config.norm_order == "pre",
    }
    norms = [nn.LayerNorm(config.width) if shape["norm_first"] else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**shape), 2, norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape), 3, norms[1])
    full = nn.Transformer(  # it initialises the weights of both again
        config.width, config.heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
        copy_attention(ours.attend.projection, ours.attend.output, theirs.self_attn)
        copy_feed(ours, theirs, ours.feed_norm, theirs.norm2)
    for ours, theirs in zip(model.decoder, decoder.layers, strict=True):
        copy_attention(ours.attend.projection, ours.attend.output, theirs.self_attn)
        projection = nn.Linear(config.width, 3 * config.width)
        for part in ("weight", "bias"):
            rows = [getattr(ours.cross.query, part), getattr(ours.cross.memory, part)]
            setattr(projection, part, nn.Parameter(torch.cat(rows)))
        copy_attention(projection, ours.cross.output, theirs.multihead_attn)
        theirs.norm2.load_state_dict(ours.cross_norm.state_dict())
        copy_feed(ours, theirs, ours.feed_norm, theirs.norm3)
    if shape["norm_first"]:
        norms[0].load_state_dict(model.encoder_norm.state_dict())
        norms[1].load_state_dict(model.decoder_norm.state_dict())
    return full


def copy_attention(projection, output, theirs):
    theirs.in_proj_weight.data.copy_(projection.weight)
    theirs.in_proj_bias.data.copy_(projection.bias)
    theirs.out_proj.load_state_dict(output.state_dict())


def copy_feed(ours, theirs, norm, their_norm):
    theirs.norm1.load_state_dict(ours.attend_norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed.enter.state_dict())
    theirs.linear2.load_state_dict(ours.feed.output.state_dict())
    their_norm.load_state_dict(norm.state_dict())


def keep_mask(lengths, total, side):
    rows = [[n < length for n in range(total)] for length in lengths]
    return torch.tensor([row if side == "right" else row[::-1] for row in rows])


def logits_by_torch(model, theirs, source, target, source_keep, target_keep):
    """Logits, with embeddings and positions written out; positions count real tokens."""

    def embed(table, ids, keep):
        index = [[max(0, sum(row[: n + 1]) - 1) for n in range(len(row))] for row in keep.tolist()]
        scaled = math.sqrt(model.config.width) * table.weight[ids]
        return scaled + sinusoidal(13, model.config.width)[torch.tensor(index)]

    output = theirs(
        embed(model.source_tokens, source, source_keep),
        embed(model.target_tokens, target, target_keep),
        tgt_mask=torch.ones(target.shape[1], target.shape[1]).triu(1).bool(),
        src_key_padding_mask=~source_keep,
        tgt_key_padding_mask=~target_keep,
        memory_key_padding_mask=~source_keep,
    )
    return output @ model.head.weight.T


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("variant", TORCH_VARIANTS, ids=str)
def test_results_equal_those_of_torchs_transformer(variant, side):
    """Logits, and the gradients of parameters that both have, with padding on both texts."""
    model = tiny(**variant)
    theirs = torch_model(model)
    source, target = torch.randint(21, (3, 11)), torch.randint(21, (3, 9))
    source_keep, target_keep = keep_mask(SOURCES, 11, side), keep_mask(TARGETS, 9, side)
    logits = model(source, target, source_keep=source_keep, target_keep=target_keep).logits
    expected = logits_by_torch(model, theirs, source, target, source_keep, target_keep)
    torch.testing.assert_close(logits[target_keep], expected[target_keep], atol=2e-5, rtol=1e-5)
    if side == "left":  # torch's padding rows are fully masked, and their gradients are NaN
        return
    labels = torch.randint(23, (3, 9))
    for numbers in (logits, expected):
        loss(numbers[target_keep], labels[target_keep]).backward(retain_graph=True)
    for ours, their_layer in (
        (model.encoder[1].feed.enter, theirs.encoder.layers[1].linear1),
        (model.decoder[0].cross_norm, theirs.decoder.layers[0].norm2),
        (model.decoder[2].cross.output, theirs.decoder.layers[2].multihead_attn.out_proj),
    ):
        torch.testing.assert_close(ours.weight.grad, their_layer.weight.grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ours.bias.grad, their_layer.bias.grad, atol=1e-5, rtol=1e-4)
    cross = theirs.decoder.layers[1].multihead_attn.in_proj_weight.grad
    ours = model.decoder[1].cross
    gradient = torch.cat([ours.query.weight.grad, ours.memory.weight.grad])
    torch.testing.assert_close(gradient, cross, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_padding_changes_nothing(variant, side):
    model = tiny(**variant)
    source, target = torch.randint(21, (3, 11)), torch.randint(21, (3, 9))
    source_keep, target_keep = keep_mask(SOURCES, 11, side), keep_mask(TARGETS, 9, side)
    together = model(source, target, source_keep=source_keep, target_keep=target_keep)
    for b in range(3):
        alone = model(source[b, source_keep[b]][None], target[b, target_keep[b]][None])
        pairs = [
            (together.logits[b, target_keep[b]], alone.logits[0]),
            (together.encoder_states[-1][b, source_keep[b]], alone.encoder_states[-1][0]),
        ]
        for ours, expected in pairs:
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def decode(model, *arguments, **keywords):
    return model.head(model.decoder_states(*arguments, **keywords)[-1])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=3)
def test_a_cache_gives_the_same_logits(variant, cuts):
    model = tiny(**variant)
    source, target = torch.randint(21, (3, 11)), torch.randint(21, (3, 9))
    keep, mask = keep_mask(SOURCES, 11, "right"), keep_mask(TARGETS, 9, "left")
    memory = model.encode(source, keep=keep)
    full = decode(model, target, memory, keep=mask, memory_keep=keep)
    cache = model.new_cache(3, source=11, capacity=9)
    edges = sorted({0, 9, *cuts})
    parts = [
        decode(model, target[:, a:b], memory, keep=mask[:, :b], memory_keep=keep, cache=cache)
        for a, b in itertools.pairwise(edges)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-5, rtol=0)


def test_a_reordered_cache_continues_other_rows():
    model = tiny()
    source, target = torch.randint(21, (1, 5)).repeat(3, 1), torch.randint(21, (3, 4))
    memory, cache = model.encode(source), model.new_cache(3, source=5)
    decode(model, target, memory, cache=cache)
    rows = torch.tensor([2, 0, 2])
    cache.reorder(rows)
    more = torch.randint(21, (3, 1))
    full = decode(model, torch.cat([target[rows], more], 1), memory)
    logits = decode(model, more, memory, cache=cache)
    torch.testing.assert_close(logits, full[:, -1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_target_tokens_attend_to_the_source_and_earlier_tokens(variant):
    model = tiny(**variant)
    source, target = torch.randint(21, (2, 7)), torch.randint(21, (2, 9))
    logits = model(source, target).logits
    changed = target.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 21
    changed_logits = model(source, changed).logits
    torch.testing.assert_close(logits[:, :5], changed_logits[:, :5])
    assert not torch.allclose(logits[:, 5:], changed_logits[:, 5:])
    source[:, -1] = (source[:, -1] + 1) % 21
    assert (model(source, target).logits != logits).any(-1).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_parameter_learns(variant):
    model = Seq2Seq(Seq2SeqConfig(**{**SMALL, **variant}))
    source, target = torch.randint(23, (2, 8)), torch.randint(23, (2, 6))
    loss(model(source, target).logits, target).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_token_tables_are_shared_as_configured():
    shared, separate = tiny(), tiny(shared=False, tied=False)
    assert shared.source_tokens.weight is shared.head.weight is shared.target_tokens.weight
    names = set(parameters_of(separate)) - set(parameters_of(shared))
    assert names == {"target_tokens.weight", "head.weight"}


def test_invalid_input_is_a_one_line_error(as_a_user):
    model, ids = tiny(), torch.zeros(1, 5, dtype=torch.long)
    long, keep = torch.zeros(1, 14, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool)
    for call, words in [
        (lambda: tiny(heads=5), "divides the width"),
        (lambda: model(long, ids), "a source of 14 tokens; expected at most .* 13"),
        (lambda: model(ids, torch.tensor([[0, 23]])), "target ids from 0 to 23"),
        (lambda: model(ids[0], ids), "batch of one"),
        (lambda: model(ids, ids, source_keep=keep), "source_keep"),
        (lambda: model(ids, ids.repeat(2, 1)), "memory of batch size 1"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            call()
