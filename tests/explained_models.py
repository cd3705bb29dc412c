"""Explanations of small models of each kind, for the tests of the views."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import torch

from heedful.explain import explain_bert, explain_gpt, explain_seq2seq
from heedful.loaded import LoadedGPT
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig

SCRIPTS = ("我", "read", "مرحبا", "and", "👍🏽", "internationalisation", "हिन्दी")
NAMES = (*SCRIPTS, *(f"w{n}" for n in range(12)))


def pieces(ids):
    return [NAMES[id] for id in ids]


def walk(kind, count=7, **where):
    """Return the explanation of a text of `count` tokens by a model of a kind."""
    torch.manual_seed(7)
    ids = torch.arange(count)[None] % len(NAMES)
    size = {"vocabulary": len(NAMES), "context_length": 400, "width": 24, "heads": 4, "layers": 3}
    if kind == "gpt":
        return explain_gpt(GPT(GPTConfig(**size)).eval(), ids, pieces=pieces, **where)
    if kind == "convolved":
        model = GPT(GPTConfig(**size, convolution=3)).eval()
        for weight in model.convolution.weights:
            torch.nn.init.normal_(weight)
        return explain_gpt(model, ids, pieces=pieces, **where)
    if kind == "grouped":
        model = GPT(GPTConfig(**size, kv_heads=2)).eval()
        return explain_gpt(model, ids, pieces=pieces, **where)
    if kind == "seq2seq":
        model = Seq2Seq(Seq2SeqConfig(**size, norm_order="post")).eval()
        return explain_seq2seq(model, ids[:, : count - 2], ids.flip(1), pieces=pieces, **where)
    model = Bert(BertConfig(**size)).eval()
    inputs = {"segments": (ids > 3).long(), "pieces": pieces, "mask": 4}
    return explain_bert(model, ids, **inputs, **where)


def loaded(tokenizer, **config):
    """A GPT with random parameters, also those that start as zeros or ones."""
    torch.manual_seed(5)
    size = {"context_length": 60, "width": 24, "heads": 4, "layers": 3}
    model = GPT(GPTConfig(vocabulary=tokenizer.size + 3, **{**size, **config})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return LoadedGPT(model, tokenizer, Path("nowhere"))


def ids_of(opened, text):
    return opened.batch(opened.tokenizer.encode(text)[: opened.context_length])


def explained(opened, text, layer=1):
    ids = ids_of(opened, text)
    return explain_gpt(opened.model, ids, pieces=opened.pieces, layer=layer)


def in_half_precision(opened):
    """The same model in float64, with parameters rounded to float16."""
    model = copy.deepcopy(opened.model)
    for parameter in model.parameters():
        parameter.data = torch.from_numpy(parameter.data.numpy().astype(np.float16).astype(float))
    return dataclasses.replace(opened, model=model)
