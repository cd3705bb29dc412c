"""Hooks of the documentation build: the pages of walks to which the lessons link.

`walk.html` shows attention without a model, `walk-model.html` a GPT trained on lesson 8's rhyme.
"""

from pathlib import Path

import torch
from properdocs.structure.files import File
from torch.nn.functional import cross_entropy

from heedful.explain import explain, explain_gpt
from heedful.loaded import LoadedGPT
from heedful.models import GPT, GPTConfig
from heedful.text import BPETokenizer
from heedful.text.example_texts import RHYME, SENTENCE
from heedful.views.walk.one_file import model_walks, page, variant_walks

STEPS, WINDOWS, LENGTH = 150, 16, 32
PROMPT = "This is the cat that"  # killed the rat


def on_files(files, config):
    """Add both pages to the site, so that the build checks links to them."""
    for name, content in (("walk.html", variants()), ("walk-model.html", model())):
        files.append(File.generated(config, name, content=content))
    return files


def variants():
    """Return the page of all variants, which also computes a sentence typed by the reader."""
    walks, first = variant_walks(explain(SENTENCE), {})
    return page(walks, first=first)


def model():
    """Return the page of a GPT's steps from a few words to the next word."""
    tokenizer = BPETokenizer.train([RHYME], 512)
    opened = LoadedGPT(trained(tokenizer), tokenizer, Path())
    ids = opened.read(PROMPT).inputs["ids"]
    explanation = explain_gpt(opened.model, ids, pieces=opened.pieces)
    return page(model_walks(explanation, opened), text=PROMPT)


def trained(tokenizer):
    """Train a small GPT on the rhyme, in some seconds."""
    torch.set_num_threads(1)  # faster than several threads for so small a model
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
