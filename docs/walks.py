"""The pages of the walk that the lessons link to, made whenever the site is built: `walk.html`,
attention without a model, and `walk-model.html`, a small GPT that learns lesson 8's rhyme first.
"""

import torch
from mkdocs.structure.files import File
from torch.nn.functional import cross_entropy

from heedful.explain import explain, explain_gpt
from heedful.models import GPT, GPTConfig
from heedful.text import BPETokenizer
from heedful.text.example_texts import RHYME, SENTENCE
from heedful.views.walk.one_file import model_walks, page, variant_walks

STEPS, WINDOWS, LENGTH = 150, 16, 32
ASKED = "This is the cat that"  # killed the rat


def on_files(files, config):
    """Two more pages, where links to them are checked."""
    for name, content in (("walk.html", variants()), ("walk-model.html", model())):
        files.append(File.generated(config, name, content=content))
    return files


def variants():
    """All variants, computed on what is typed."""
    offered, first = variant_walks(explain(SENTENCE), {})
    return page(offered, first=first)


def model():
    """A GPT's way from a few words to the next one."""
    tokenizer = BPETokenizer.train([RHYME], 512)
    ids = torch.tensor([tokenizer.encode(ASKED)])
    found = explain_gpt(learned(tokenizer), ids, pieces=tokenizer.pieces)
    return page(model_walks(found))


def learned(tokenizer):
    """A small GPT that knows the rhyme, after some seconds."""
    torch.set_num_threads(1)  # more would wait for each other, with so little to do
    torch.manual_seed(0)
    size = {"vocabulary": tokenizer.size, "context_length": LENGTH, "width": 32}
    gpt = GPT(GPTConfig(**size, layers=2, heads=4, positions="sinusoidal"))
    text = torch.tensor(tokenizer.encode(RHYME))
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=0.02)
    for _ in range(STEPS):
        starts = torch.randint(0, len(text) - LENGTH, (WINDOWS, 1))
        windows = text[starts + torch.arange(LENGTH + 1)]
        logits = gpt(windows[:, :-1]).logits
        optimizer.zero_grad()
        cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
        optimizer.step()
    return gpt.eval()
