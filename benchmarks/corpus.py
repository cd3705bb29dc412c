"""Speed and memory of tokenizing a long text.

    python benchmarks/corpus.py --megabytes 200

Each row is measured in a new process. "heedful" streams the text to a token file and draws batches
of 12 × 256 tokens from it. "at once" reads a text into memory, encodes it and keeps the ids; that
text is shorter, to fit into memory. The time of `bpe` includes training the tokenizer, for
"heedful" on a sample of at most 8 MB, for "at once" on its full text. Memory is the peak rise of
anonymous memory. The last line compares the memory of `heedful train` (preset
quick, few steps) on the long and on the short text.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from memory import in_fresh_process, memory_rise

from heedful.errors import TextError
from heedful.text import TokenizerChoice, open_encoding, open_source, prepare, python_reference
from heedful.train import PRESETS, NextToken, begin, new_plan, open_training
from heedful.train.batches import BatchIndex

STEPS, BATCH, CONTEXT = 200, 12, 256
LETTERS = "eeettaaooiinnsshhrrdlucmwfgypbvk"


@dataclass
class Row:
    """One line of the table; `rise` is the peak rise of anonymous memory, in MB."""

    way: str
    megabytes: float
    seconds: float
    tokens: int
    rise: float
    batches: float | None = None

    @property
    def speed(self) -> float:
        """Megabytes of text per second."""
        return self.megabytes / self.seconds


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        text, share = Path(folder, "text.txt"), Path(folder, "share.txt")
        write_text(text, arguments.megabytes)
        write_text(share, arguments.peer_megabytes)
        print(f"{text.stat().st_size / 1e6:.0f} MB of text", flush=True)
        print(f"{'tokenizer':13}{'way':9}{'MB':>6}{'s':>7}{'MB/s':>7}", end="")
        print(f"{'tokens':>13}{'rise MB':>9}{'rise/text':>11}{'batches/s':>11}{'speed ×':>9}")
        for name in arguments.tokenizers:
            if _available(name):
                ours = in_fresh_process(stream, name, text)
                peer = in_fresh_process(at_once, name, share)
                _show(name, ours, ours.speed / peer.speed)
                _show(name, peer, 1.0)
        long, short = (in_fresh_process(train, "bpe", path).rise for path in (text, share))
        print(f"heedful train: rise {long:.0f} MB on {_size(text)}, ", end="")
        print(f"{short:.0f} MB on {_size(share)}; difference {long - short:.0f} MB")


def write_text(path: Path, megabytes: float, seed: int = 0) -> None:
    """Write paragraphs of the Python reference, each followed by random and invented words."""
    rng = random.Random(seed)
    reference = python_reference()
    paragraphs = reference.split("\n\n")
    words = reference.split(" ")
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            mixed = " ".join(_word(words, rng) for _ in range(rng.randrange(40, 120)))
            written += file.write(f"{rng.choice(paragraphs)}\n\n{mixed}\n\n")


def _word(words: list[str], rng: random.Random) -> str:
    """Draw a word: 1 of 30 is invented, and half of these are from 40,000 recurring words."""
    if rng.random() > 1 / 30:
        return rng.choice(words)
    maker = random.Random(rng.randrange(40_000)) if rng.random() < 0.5 else rng
    return "".join(maker.choices(LETTERS, k=maker.randrange(3, 10)))


def stream(name: str, path: Path) -> Row:
    with memory_rise() as rise:
        start = time.perf_counter()
        out = path.with_name(f"{name}.npy")
        _, tokens = prepare(open_source([path]), TokenizerChoice(name), out)
        seconds = time.perf_counter() - start
        task = NextToken(tokens.train, tokens.validation, CONTEXT)
        start = time.perf_counter()
        for step in range(STEPS):
            task.draw(BATCH, BatchIndex((0, step)))
        batches = STEPS / (time.perf_counter() - start)
    return Row("heedful", path.stat().st_size / 1e6, seconds, len(tokens), rise[0], batches)


def train(name: str, path: Path) -> Row:
    """Tokenize and train as the command does; the rise excludes importing torch."""
    out = path.with_name(f"run-{path.stem}")
    recipe = PRESETS["quick"].changed(
        {"text": {"tokenizer": name, "validation": 1e-4}, "train": {"steps": STEPS // 10}}
    )
    with memory_rise() as rise:
        start = time.perf_counter()
        plan = new_plan(out, [str(path)], recipe)
        prepared = begin(plan)
        for _ in open_training(plan, prepared).events():
            pass
        seconds = time.perf_counter() - start
    return Row("train", path.stat().st_size / 1e6, seconds, len(prepared.tokens), rise[0])


def at_once(name: str, path: Path) -> Row:
    encode = {"characters": _characters_at_once, "bpe": _bpe_at_once}.get(name)
    with memory_rise() as rise:
        start = time.perf_counter()
        ids = encode(path) if encode else _tiktoken_at_once(name, path)
        seconds = time.perf_counter() - start
    return Row("at once", path.stat().st_size / 1e6, seconds, len(ids), rise[0])


def _characters_at_once(path: Path) -> np.ndarray:
    text = path.read_text("utf-8")
    id_of = {char: id for id, char in enumerate(sorted(set(text)))}
    return np.array([id_of[char] for char in text], np.uint16)


def _bpe_at_once(path: Path) -> np.ndarray:
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(str(path), vocab_size=TokenizerChoice().vocabulary, show_progress=False)
    return np.array(tokenizer.encode(path.read_text("utf-8")).ids, np.uint16)


def _tiktoken_at_once(name: str, path: Path) -> np.ndarray:
    return np.array(open_encoding(name).encode_ordinary(path.read_text("utf-8")), np.uint32)


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.0f} MB"


def _available(name: str) -> bool:
    try:
        if name not in ("bpe", "characters"):
            open_encoding(name)
    except TextError as error:
        print(f"{name:13}skipped: {error}")
        return False
    return True


def _show(name: str, row: Row, ratio: float) -> None:
    print(f"{name:13}{row.way:9}{row.megabytes:6.0f}{row.seconds:7.1f}{row.speed:7.1f}", end="")
    print(f"{row.tokens:13,}{row.rise:9.0f}{row.rise / row.megabytes:11.2f}", end="")
    print(f"{row.batches:11,.0f}" if row.batches else " " * 11, f"{ratio:8.1f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=200, help="size of heedful's text")
    parser.add_argument("--peer-megabytes", type=float, default=10, help='size for "at once"')
    parser.add_argument("--tokenizers", nargs="+", default=["characters", "bpe", "cl100k_base"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
