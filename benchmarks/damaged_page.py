"""What a browser shows of the one-file page after one byte of the file has changed.

    python benchmarks/damaged_page.py             # 180 flips of one bit and 20 cuts
    python benchmarks/damaged_page.py --flips 20

Each damaged file is opened in Chromium, and its source answers the same questions as that of the
intact file. Outcomes: a sentence (the page states that it is damaged, or a question fails with
such an error), harmless (the same text and the same answers), looks (the same answers; another
title or style), wrong (other answers, and no sentence), blank (no text at all).
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Error, sync_playwright
from timing import machine

import heedful
from heedful.models import GPT, GPTConfig
from heedful.text import CharacterTokenizer
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue

WAIT, POLL = 6000, 100  # milliseconds for a page to start; between two looks at it
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DAMAGED = "damaged or incomplete"
# the answers of all kinds of questions for the first head of each call, or an error's message
ANSWERS = """async () => {
  const element = document.getElementById("heedful");
  const answers = [];
  const { recordings } = await element.source.ask("about");
  for (const [c, { heads }] of recordings[0].texts[0].calls.entries()) {
    const call = `0.0.${c}`;
    for (const [question, more] of [["tokens", { axis: "keys", start: 0, stop: 99 }],
        ["small", {}], ["scores", {}], ...heads.map((head) => ["row", { heads: head, at: 9 }])])
      try {
        answers.push(JSON.stringify(await element.source.ask(question, { call, ...more })));
      } catch (error) {
        answers.push(String(error.message));
      }
  }
  return answers;
}"""


def recorded() -> Any:
    torch.manual_seed(0)
    letters = CharacterTokenizer(" abcdefghijklmnopqrstuvwxyz")
    model = GPT(GPTConfig(vocabulary=letters.size, context_length=64, width=24, layers=2, heads=3))
    with heedful.record(model.eval(), tokenizer=letters) as recording:
        model(torch.tensor([letters.encode("a head looks back at every word")]))
    return recording


def opened(browser: Browser, path: Path) -> tuple[str, list[str]]:
    """Return the visible text of a page, and the answers of its source."""
    page = browser.new_page()
    errors: list[Any] = []
    page.on("pageerror", lambda error: errors.append(error))
    page.on("console", lambda entry: entry.type == "error" and errors.append(entry))
    try:
        page.goto(path.as_uri())
        answers: list[str] = []
        for _ in range(WAIT // POLL):
            if page.locator(".heedful canvas, p.wrong").count():
                with suppress(Error):
                    answers = page.evaluate(ANSWERS)
                break
            if errors:
                break
            page.wait_for_timeout(POLL)
        page.wait_for_timeout(POLL)
        page.evaluate("document.getAnimations().forEach((animation) => animation.finish())")
        return page.evaluate("document.body?.innerText ?? ''").strip(), answers
    finally:
        page.close()


def outcome(text: str, answers: list[str], intact: tuple[str, list[str]]) -> str:
    if DAMAGED in text or any(DAMAGED in answer for answer in answers):
        return "sentence"
    if not text:
        return "blank"
    if answers != intact[1]:
        return "wrong"
    return "harmless" if text == intact[0] else "looks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=180)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=["--no-sandbox"], executable_path=CHROMIUM)
        path = Path(folder) / "page.html"
        one_file.write(path, Catalogue({"a": recorded()}), "a page")
        content = path.read_bytes()
        intact = opened(browser, path)
        print(f"{machine()}\n{len(content):,} bytes, {len(intact[1])} answers")
        for name, count in (("flips", arguments.flips), ("cuts", arguments.cuts)):
            counts: Counter[str] = Counter()
            for _ in range(count):
                place = chance.randrange(len(content))
                changed = bytearray(content)
                changed[place] ^= 1 << chance.randrange(8)
                path.write_bytes(changed if name == "flips" else content[:place])
                word = outcome(*opened(browser, path), intact)
                counts[word] += 1
                if word in ("wrong", "blank", "looks"):
                    print(f"  {word}: byte {place:,}, {bytes(content[place - 20 : place + 20])!r}")
            print(f"{count} {name}: {', '.join(f'{n} {word}' for word, n in counts.most_common())}")


if __name__ == "__main__":
    main()
