"""One small model of each kind with random parameters, so that no head attends uniformly."""

from pathlib import Path

import torch

from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.text import CharacterTokenizer, WordPieceTokenizer

CONTEXT = 13
SHAPE = {"context_length": CONTEXT, "width": 12, "layers": 2, "heads": 3}
LETTERS = CharacterTokenizer(" abcdefg")
WORDS = WordPieceTokenizer.train(["the cat sat on the mat"], 60)
KINDS = {
    LoadedGPT: (GPT, GPTConfig(vocabulary=8, **SHAPE), LETTERS),
    LoadedBert: (Bert, BertConfig(vocabulary=WORDS.size, **SHAPE), WORDS),
    LoadedSeq2Seq: (Seq2Seq, Seq2SeqConfig(vocabulary=10, **SHAPE), LETTERS),
}


def drawn(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.eval()


def opened(kind, tokenizer=None):
    family, config, usual = KINDS[kind]
    tokenizer = tokenizer or usual
    if kind is LoadedBert:
        config = BertConfig(vocabulary=tokenizer.size, **SHAPE)
    return kind(drawn(family(config)), tokenizer, Path())
