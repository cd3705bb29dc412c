"""Small recordings of every kind of attention, of small untrained models."""

import torch
import transformers
from torch import nn

import heedful
from heedful.generate import Sampling, generate
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.text import CharacterTokenizer

LETTERS = CharacterTokenizer(" abcdefghijklmnopqrstuvwxyz")
VOCABULARY = LETTERS.size
SENTENCE = "a head looks back"  # 17 letters
SHAPE = {"vocabulary": VOCABULARY, "context_length": 64, "width": 24, "layers": 2}


def sharp(model, seed, deviation=0.7):
    """Initialise a model so that its attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=deviation, generator=generator)
    return model.eval()


def ids_of(text):
    return torch.tensor([LETTERS.encode(text)])


def of_gpt(seed=1, text=SENTENCE, values=False, **changed):
    """Record a GPT on a text."""
    model = sharp(GPT(GPTConfig(**{**SHAPE, "heads": 3, **changed})), seed)
    with heedful.record(model, tokenizer=LETTERS, values=values) as recording:
        model(ids_of(text))
    return recording


def padded():
    """Record a batch of two texts of unequal length, with padding."""
    config = BertConfig(vocabulary=VOCABULARY, context_length=32, width=24, layers=2, heads=3)
    model = sharp(Bert(config), 2)
    ids = torch.cat([ids_of("a longer text"), ids_of("seven l" + " " * 6)])
    keep = torch.tensor([[True] * 13, [True] * 7 + [False] * 6])
    with heedful.record(model, tokenizer=LETTERS) as recording:
        model(ids, keep=keep)
    return recording


def cross():
    """Record an encoder–decoder on a source of 11 letters and a target of 5."""
    config = Seq2SeqConfig(vocabulary=VOCABULARY, context_length=32, width=24, layers=1, heads=2)
    model = sharp(Seq2Seq(config), 3)
    with heedful.record(model, tokenizer=LETTERS) as recording:
        model(ids_of("from source"), ids_of("to it"))
    return recording


def generated():
    """Record a generation with a cache, in a pass for each token."""
    model = sharp(GPT(GPTConfig(**SHAPE, heads=2)), 4)
    with heedful.record(model, tokenizer=LETTERS) as recording:
        list(generate(model, LETTERS.encode("begun "), tokens=7, sampling=Sampling(temperature=0)))
    return recording


OTHERS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": VOCABULARY,
          "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}  # fmt: skip
# Models of transformers: with a soft cap, with a learned sink, and with a bias for each distance
TRANSFORMERS = {
    "capped": ("Gemma2ForCausalLM", transformers.Gemma2Config, {
        "sliding_window": 6, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, **OTHERS}),
    "sinks": ("GptOssForCausalLM", transformers.GptOssConfig, {
        "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1, **OTHERS}),
    "biased": ("T5EncoderModel", transformers.T5Config, {
        "d_model": 24, "d_kv": 6, "d_ff": 32, "num_layers": 1, "num_heads": 4,
        "vocab_size": VOCABULARY, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 10}),
}  # fmt: skip


def of_transformers(name):
    """Record a model of transformers with eager attention: fused kernels lack these features."""
    kind, config, sizes = TRANSFORMERS[name]
    model = getattr(transformers, kind)._from_config(config(**sizes), attn_implementation="eager")
    model = sharp(model, 5, 0.35)
    with heedful.record(model, tokenizer=LETTERS) as recording:
        model(ids_of("seen by another"))
    return recording


class Causal(nn.Module):
    """Fused causal attention and nothing else."""

    def forward(self, query, key, value):
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def long(tokens=1500):
    """Record two heads on more tokens than a screen has pixels, without token names."""
    query, key, value = torch.randn(3, 1, 2, tokens, 8, generator=torch.Generator().manual_seed(9))
    with heedful.record(model := Causal()) as recording:
        model(2 * query, 2 * key, value)
    return recording


EVIL = "</script><img src=x onerror=alert(1)>"
STRANGE = [
    EVIL, "<b>bold</b>", "&amp;", "${1}`", "مرحبا", "שלום", "\u202eright to left", "日本語",
    "नमस्ते", "👩🏽‍🚀", "e\u0301", "\x00\x07\x1b", "\n", "\t", " ", "", "\ufffd\ud800", "\u200b",
    "long" * 2500, '"quoted"', "a,b", "=1+1",
]  # fmt: skip


def strange():
    """Record tokens of many scripts, control characters, and HTML."""
    config = GPTConfig(**{**SHAPE, "vocabulary": len(STRANGE), "heads": 3})
    model = sharp(GPT(config), 11)
    with heedful.record(model, tokenizer=lambda ids: [STRANGE[i] for i in ids]) as recording:
        model(torch.arange(len(STRANGE))[None])
    return recording


KINDS = {
    "causal": of_gpt,
    "windowed": lambda: of_gpt(6, window=5),
    "grouped": lambda: of_gpt(7, "grouped and turned", heads=6, kv_heads=2, positions="rotary"),
    "with values": lambda: of_gpt(8, "values too", values=True),
    "padded": padded,
    "cross": cross,
    "generated": generated,
    "capped": lambda: of_transformers("capped"),
    "sinks": lambda: of_transformers("sinks"),
    "biased": lambda: of_transformers("biased"),
    "long": long,
    EVIL: strange,
}


def all_kinds():
    """Return the recordings, by the name of their kind."""
    return {name: record() for name, record in KINDS.items()}
