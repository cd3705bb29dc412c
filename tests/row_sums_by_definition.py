"""Recorded models, and the weights and log-sum-exp of their rows by definition."""

import math

import shown_maps
import torch
from shown_maps import Given
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
)

from heedful.models import GPT, GPTConfig
from heedful.recording import map_rows

B, H, N, D = 2, 4, 40, 8


def gpt(**changes):
    sizes = {"vocabulary": 23, "context_length": N, "width": 24, "layers": 2, "heads": 4}
    return GPT(GPTConfig(**{**sizes, **changes})).eval()


def llama(implementation="sdpa", kind=LlamaModel, config=LlamaConfig, **changes):
    settings = config(
        vocab_size=23, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, **changes,
    )  # fmt: skip
    return kind._from_config(settings, attn_implementation=implementation).eval()


def gpt2(implementation="sdpa"):
    config = GPT2Config(n_layer=2, n_head=4, n_embd=24, vocab_size=23, n_positions=64)
    return GPT2Model._from_config(config, attn_implementation=implementation).eval()


def by_hand(query, key):
    return (query @ key.mT / D**0.5).softmax(-1) @ key


def heads_first(query, key):
    """Attention with heads before sequences, as in some models."""
    query, key = query.transpose(0, 1), key.transpose(0, 1)
    return scaled_dot_product_attention(query, key, key).transpose(0, 1)


recorded = torch.no_grad()(shown_maps.recorded)


def ids():
    return torch.randint(0, 23, (B, N))


def record_ids(model):
    return lambda **options: recorded(model, ids(), **options)


def record_tensors(function, axes=None):
    inputs = torch.randn(2, B, H, N, D)
    return lambda **options: recorded(Given(function), *inputs, axes=axes, **options)


def causal_flex(query, key):
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, N, N, device="cpu")
    return flex_attention(query, key, key, block_mask=mask)


def record_module():
    attention = nn.MultiheadAttention(24, 4, batch_first=True).train()  # disables fused kernels
    named = {"need_weights": False}
    return lambda **options: recorded(attention, *torch.randn(3, B, N, 24), named=named, **options)


FROM_KERNEL = {
    "our own": record_ids(gpt()),
    "our own, grouped": record_ids(gpt(kv_heads=2)),
    "transformers": record_ids(gpt2()),
    "transformers, grouped": record_ids(llama()),
    "SDPA": record_tensors(lambda query, key: scaled_dot_product_attention(query, key, key)),
    "SDPA, heads first": record_tensors(heads_first, {"Given": "h b n d"}),
    "flex": record_tensors(causal_flex),
    "nn.MultiheadAttention": record_module(),
}
COMPUTED = {
    "eager": record_ids(gpt2("eager")),
    "by hand": record_tensors(by_hand),
}


def full_map(call):
    """Return the map of a call and the log-sum-exp of each row, in float64."""
    query, key, scale, mask, bias, *_ = call.causes
    scores = query.double() @ key.double().repeat_interleave(len(query) // len(key), 0).mT * scale
    scores = scores if bias is None else scores + bias
    allowed = torch.ones(call.shape).bool() if mask is None else mask.crop(call.shape)
    scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


def assert_exact(call, close=2e-6):
    """Compare parts, pictures and log-sum-exps of a call with the full map."""
    map_, sums = full_map(call)
    rows, columns = [3, -1, 17], slice(5, 21)
    part = call.weights(queries=rows, keys=columns)
    torch.testing.assert_close(part.double(), map_[:, rows, columns], atol=close, rtol=0)
    torch.testing.assert_close(call.log_sum_exp().double(), sums, atol=4 * close, rtol=1e-6)
    picture = call.heatmap(4, head=1, queries=slice(8, 40), keys=slice(0, 24))
    expected = map_[1, 8:40, :24].unflatten(1, (-1, 6)).unflatten(0, (-1, 8)).mean((1, 3))
    torch.testing.assert_close(picture.double(), expected, atol=close, rtol=0)


def forbid_full_rows(monkeypatch):
    """Make the computation of full rows raise, and disable the path for small parts."""
    monkeypatch.setattr(map_rows, "by_rows", None)
    monkeypatch.setattr(map_rows.statistics, "gather", None)
    monkeypatch.setattr(map_rows, "block_entries", lambda _: 0)
