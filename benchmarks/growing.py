"""Cost of live generation in the explorer, next to plain and recorded generation.

    python benchmarks/growing.py            # a minute or two
    python benchmarks/growing.py RUN        # also measures a trained run

The benchmark prints milliseconds per token of greedy generation up to 128 tokens. "generate" runs
alone, and "recorded" inside `heedful.record`. "live" is the generation of `heedful look --generate`
without a page. "watched" has a page in Chromium, which draws the map of one head after each token.
The ways alternate in one process; the page and its server have a process each.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Page, sync_playwright
from safetensors.torch import save_file
from timing import Turns, machine

import heedful
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig, parameters_of, write_model_config
from heedful.text import CharacterTokenizer
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.generation import Generation

TOKENS, PROMPT = 128, "the import"
LETTERS = " abcdefghijklmnopqrstuvwxyz"
SHAPES = {
    "the demo's shape: 4 layers of 4 heads, width 128": {"layers": 4, "heads": 4, "width": 128},
    "6 layers of 6 heads, width 384": {"layers": 6, "heads": 6, "width": 384},
}


def saved(folder: Path, shape: dict[str, int]) -> Path:
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=len(LETTERS), context_length=TOKENS, positions="rotary", **shape)
    CharacterTokenizer(LETTERS).save(folder)
    write_model_config(folder, config)
    save_file(parameters_of(GPT(config)), folder / "model.safetensors")
    return folder


@contextmanager
def watched(run: Path, tokens: int) -> Iterator[Page]:
    """Open the page of `heedful look --generate` in a browser."""
    command = "from heedful.cli import main; raise SystemExit(main())"
    server = subprocess.Popen(
        [sys.executable, "-c", command, "look", str(run), PROMPT, "--generate", "--no-browser",
         "--device", "cpu"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        page.goto(address)
        page.goto(f"{address.partition('?')[0]}#call=0.0.0&head=0")
        page.reload()
        page.get_by_role("spinbutton", name="tokens").fill(str(tokens))
        page.get_by_role("button", name="Sampling").click()
        page.get_by_role("spinbutton", name="temperature").fill("0")
        page.keyboard.press("Escape")
        yield page
        browser.close()
    server.terminate()
    server.wait()


def measure(name: str, run: Path, rounds: int) -> None:
    loaded: Any = heedful.open(run, device="cpu")
    ids = loaded.ids(PROMPT)[0].tolist()
    added = TOKENS - len(ids)
    greedy = Sampling(temperature=0.0)

    def alone() -> None:
        list(generate(loaded.model, ids, tokens=added, sampling=greedy))

    def recorded() -> None:
        with heedful.record(loaded.model):
            alone()

    def live() -> None:
        generation = Generation(loaded, Catalogue({}), PROMPT)
        generation.do("begin", {"prompt": PROMPT, "tokens": added, "temperature": 0})
        generation.work()

    with watched(run, added) as page:
        region = page.get_by_role("region", name="Generation")

        def watched_page() -> None:
            region.get_by_role("button", name="Generate").click()
            region.get_by_text("generating").wait_for()
            region.get_by_text(re.compile(f"stopped.*{added} added")).wait_for(timeout=120_000)

        ways = {"generate": alone, "recorded": recorded, "live": live, "watched": watched_page}
        turns = Turns(ways, rounds)
    print(f"\n{name}, {added} tokens after {len(ids)}")
    for way in ways:
        time = turns.median(way) / added * 1000
        print(f"  {way:10}{time:8.2f} ms a token{turns.ratio(way, 'generate'):8.2f} × generate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, help="a trained run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        for n, (name, shape) in enumerate(SHAPES.items()):
            folder = Path(temporary) / str(n)
            folder.mkdir()
            measure(name, saved(folder, shape), options.rounds)
    if options.run is not None:
        measure(str(options.run), options.run, options.rounds)


if __name__ == "__main__":
    main()
