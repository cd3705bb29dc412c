"""A modified copy of a nanochat checkout, which trains on another text.

The copy replaces nanochat's tokenizer and data loader, which need extra packages. Tokens are
characters, training draws random windows, and validation reads its split from the start. The
model, optimizer, schedules and training loop are unchanged.
"""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import numpy as np

CHECK = re.compile(r"Step (\d+) \| Validation bpb: ([\d.]+)")
NATS = math.log(2)  # nats per bit; a token counts as a byte
TOKENIZER = """
import json, os, torch

class Characters:
    def get_vocab_size(self):
        return json.load(open(os.environ["TEXT"] + "/sizes.json"))["vocabulary"]
    def get_bos_token_id(self): return 0

def get_tokenizer(): return Characters()
def get_token_bytes(device="cpu"):
    return torch.ones(get_tokenizer().get_vocab_size(), dtype=torch.int32, device=device)
"""
LOADER = """
import os
import numpy as np
import torch

def windows(ids, starts, length):
    rows = torch.from_numpy(np.stack([ids[start:start + length + 1] for start in starts]))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

def drawn(tokenizer, B, T, split, device="cpu", resume_state_dict=None):
    ids = np.load(os.environ["TEXT"] + "/train.npy")
    draw = np.random.default_rng(int(os.environ["SEED"]))
    while True:
        starts = draw.integers(0, len(ids) - T, B)
        yield *windows(ids, starts, T), {"epoch": 1, "pq_idx": 0, "rg_idx": 0}

def in_order(tokenizer, B, T, split, device="cpu"):
    ids = np.load(os.environ["TEXT"] + "/val.npy")
    for start in range(0, len(ids) - B * T, B * T):
        yield windows(ids, range(start, start + B * T, T), T)

tokenizing_distributed_data_loader_with_state_bos_bestfit = drawn
tokenizing_distributed_data_loader_bos_bestfit = in_order
"""


def copied(checkout: Path, copy: Path, text: str) -> Path:
    """Copy the checkout and prepare the text in its folder `text`."""
    copy.mkdir()
    for name in ("nanochat", "scripts"):
        shutil.copytree(checkout / name, copy / name)
    common = copy / "nanochat" / "common.py"
    source, count = re.subn(
        r"torch\.manual_seed\(42\)",
        "torch.manual_seed(int(os.environ['SEED']))",
        common.read_text(),
    )
    if not count or not (copy / "nanochat" / "dataloader.py").is_file():
        raise SystemExit(f"{checkout}: expected nanochat with manual_seed(42) and a dataloader.py")
    common.write_text(source)
    (copy / "nanochat" / "tokenizer.py").write_text(TOKENIZER)
    (copy / "nanochat" / "dataloader.py").write_text(LOADER)
    (copy / "wandb.py").touch()  # imported, but not used by the run "dummy"
    data = copy / "text"
    data.mkdir()
    characters = Path(text).read_text("utf-8")
    names = sorted(set(characters))
    numbers = {name: number for number, name in enumerate(names)}
    ids = np.array([numbers[name] for name in characters], np.int64)
    split = int(0.9 * len(ids))
    np.save(data / "train.npy", ids[:split])
    np.save(data / "val.npy", ids[split:])
    (data / "sizes.json").write_text(f'{{"vocabulary": {len(names)}}}')
    return copy


def arguments(copy: Path, steps: int, every: int, batch: int, context: int) -> list[str]:
    """Return Python's arguments that train the copy: nanochat's runcpu.sh, in nanoGPT's shape."""
    tokens = len(np.load(copy / "text" / "val.npy"))
    options = {
        "depth": 4,
        "aspect-ratio": 32,  # a width of 128
        "head-dim": 32,
        "window-pattern": "L",
        "max-seq-len": context,
        "device-batch-size": batch,
        "total-batch-size": batch * context,
        "eval-every": every,
        "eval-tokens": (tokens - 1) // (batch * context) * batch * context,
        "core-metric-every": -1,
        "sample-every": -1,
        "num-iterations": steps,
        "device-type": "cpu",
    }
    return ["-m", "scripts.base_train", *(f"--{name}={value}" for name, value in options.items())]


def variables(copy: Path, seed: int) -> dict[str, str]:
    return {"SEED": str(seed), "TEXT": str(copy / "text"), "NANOCHAT_BASE_DIR": str(copy / "base")}
