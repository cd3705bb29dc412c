"""Speed of the explorer's server and page at long contexts; size of its file next to BertViz's.

    python benchmarks/explorer.py            # about twenty minutes, half of them recording
    python benchmarks/explorer.py --quick    # fewer tokens, one minute

The recording has one layer of 12 causal heads of width 64 with random queries and keys. The server
is `heedful look` in a separate process. It gets the requests that a browser sends, while its own
background work continues. Frames are measured in Chromium with software rendering if Chromium and
Playwright are installed. Targets are for a machine with two cores.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
import torch.nn.functional as F
from timing import machine
from torch import Tensor, nn

import heedful
from heedful.models import GPT, GPTConfig
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.tiles import SIDE
from heedful.views.explorer.wire import unpacked

HEADS, WIDTH = 12, 64
DIRECT, FINEST = 4, 5
MAX_LOAD = 2.5  # load average above which the figures are not reliable


class OneLayer(nn.Module):
    """A model that calls causal SDPA."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; all tensors are (1, H, N, d)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@torch.no_grad()
def recorded(tokens: int, path: Path) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, HEADS, tokens, WIDTH)
    with heedful.record(model := OneLayer()) as recording:
        model(query * 2, key, value)
    recording.save(path)


class Served:
    """A running `heedful look` and the requests to it."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        began = time.perf_counter()
        command = "from heedful.cli import main; raise SystemExit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "look", *arguments, "--no-browser"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            **{"stderr": subprocess.DEVNULL, **options},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.seconds = time.perf_counter() - began
        self.port = int(self.address.split(":")[2].split("/")[0])
        self.link = http.client.HTTPConnection("127.0.0.1", self.port)
        word = self.address.partition("word=")[2]
        self.link.request("POST", "/session", headers={"Authorization": f"Bearer {word}"})
        self.headers = {"Authorization": f"Bearer {self.link.getresponse().read().decode()}"}

    def ask(self, question: str, **words: Any) -> tuple[dict, dict]:
        """Send a request; return the header and the arrays of the response."""
        query = urlencode({"call": "0.0.0", **words})
        self.link.request("GET", f"/ask/{question}?{query}", headers=self.headers)
        answer = self.link.getresponse()
        data = answer.read()
        assert answer.status == 200, data[:300]
        return unpacked(data)

    def timed(self, question: str, **words: Any) -> tuple[float, dict]:
        """Return the seconds of a request, and the header of its response."""
        began = time.perf_counter()
        head, _ = self.ask(question, **words)
        return time.perf_counter() - began, head

    def until_exact(self, question: str, patience: float, **words: Any) -> tuple[float, dict]:
        """Repeat a request until the response is exact, or for at most `patience` seconds."""
        began = time.perf_counter()
        while True:
            _, head = self.timed(question, **words)
            seconds = time.perf_counter() - began
            if head["word"] == "exact" or seconds > patience:
                return seconds, head
            time.sleep(0.2)

    def memory(self) -> int:
        """Return the server's peak memory in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

    def end(self) -> None:
        """Interrupt the server as Ctrl-C does, and wait."""
        self.process.send_signal(2)
        self.process.wait(20)


@contextmanager
def served(path: Path) -> Iterator[Served]:
    server = Served(str(path))
    try:
        yield server
    finally:
        server.end()


def report(label: str, figure: float, unit: str, target: float | None = None) -> None:
    result = "met" if target is None or figure <= target else "MISSED"
    verdict = "" if target is None else f"   target at most {target:g}: {result}"
    print(f"  {label:58}{figure:10.4g} {unit}{verdict}", flush=True)


def milliseconds_p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1] * 1e3


def server_part(path: Path, tokens: int, regions: int, patience: float) -> None:
    """Measure the requests of a page on a long recording."""
    top = (tokens - 1).bit_length() - (SIDE.bit_length() - 1)
    print(f"\n{HEADS} heads, {tokens:,} tokens, a recording of {path.stat().st_size / 1e6:,.0f} MB")
    with served(path) as server:
        report("start of the command to printed address", server.seconds, "s")
        began = time.perf_counter()
        server.ask("about")
        server.ask("tile", place=f"0,{top},0,0", reduce="max")
        report("first picture of a head", time.perf_counter() - began, "s", 1)
        server.ask("small")
        report("with the thumbnails of all heads", time.perf_counter() - began, "s", 1)
        server.ask("scores")
        direct(server, tokens, regions)
        larger(server, tokens, top, regions, patience)
        scores(server, patience)
        extra = (server.memory() - path.stat().st_size) / 1e6
        report("peak memory without the recording", extra, "MB", 400)


def direct(server: Served, tokens: int, regions: int) -> None:
    """Measure regions of 4,096 × 4,096 cells at random places and on the diagonal."""
    side, seconds = SIDE << DIRECT, []
    for number in range(regions):
        row = random.randrange(tokens // side)
        column = row if number % 4 == 0 else random.randrange(row + 1)
        words = {"place": f"{number % HEADS},{DIRECT},{row},{column}"}
        time.sleep(random.random() / 20)  # requests arrive at random times of background work
        took, head = server.timed("tile", **words, reduce=("mean", "max")[number % 2])
        assert head["word"] == "exact", head
        seconds.append(took)
    report(
        f"{side:,} × {side:,} cells to the screen, p50 of {regions}",
        milliseconds_p50(seconds),
        "ms",
    )
    report("the same, p95", milliseconds_p95(seconds), "ms", 150)


def milliseconds_p50(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def larger(server: Served, tokens: int, top: int, regions: int, patience: float) -> None:
    """Measure the whole map, first sampled, then exact, and regions read from its pyramid."""
    full_map = {"place": f"1,{top},0,0", "reduce": "max"}
    took, head = server.timed("tile", **full_map)
    report("the whole map, sampled", took * 1e3, "ms")
    took, head = server.until_exact("tile", patience, **full_map)
    if head["word"] != "exact":
        print(f"  {head['done']:.0%} of the pyramid is computed after {took:.0f} s")
        return
    report("the whole map, exact: its pyramid is complete after", took, "s")
    seconds = []
    for _ in range(regions):
        level = random.randint(FINEST, top)
        row = random.randrange(-(-tokens // (SIDE << level)))
        place = f"1,{level},{row},{random.randrange(row + 1)}"
        took, head = server.timed("tile", place=place, reduce="max")
        assert head["word"] == "exact", head
        seconds.append(took)
    report(f"larger regions from the pyramid, p50 of {regions}", milliseconds_p50(seconds), "ms")
    report("the same, p95", milliseconds_p95(seconds), "ms", 50)


def scores(server: Served, patience: float) -> None:
    """Measure the head scores, first from sampled queries, then from all queries."""
    began = time.perf_counter()
    while time.perf_counter() - began < patience:
        head, _ = server.ask("scores")
        if "" not in head["kinds"]:
            break
        time.sleep(0.2)
    report("scores of all heads, sampled, after", time.perf_counter() - began, "s")
    took, head = server.until_exact("scores", patience)
    if head["word"] == "exact":
        report("the same, exact, after", took, "s")
    elif head["done"]:
        report("the same, exact, extrapolated from its progress", took / head["done"], "s")


def browser_part(path: Path, seconds: float) -> None:
    """Measure the loading time of the page, and its frames while a cached map is panned."""
    print("\nthe page in Chromium, software rendering")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("  not measured: chromium and playwright are not both installed")
        return
    with served(path) as server, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        token = server.headers["Authorization"].removeprefix("Bearer ")
        page.add_init_script(f"localStorage.setItem('heedful: session', '{token}')")
        page.goto(server.address)  # a first visit, which fills caches
        wait_for_map(page)
        page.reload(wait_until="commit")
        wait_for_map(page)
        report("page usable after loading", page.evaluate("performance.now()") / 1e3, "s", 1)
        page.wait_for_timeout(3000)  # until the neighbouring tiles are loaded
        frames = panned(page, seconds)
        report(f"frames while panning, p50 of {len(frames)}", milliseconds_p50(frames), "ms")
        report("the same, p95", milliseconds_p95(frames), "ms", 33)
        browser.close()


def wait_for_map(page: Any) -> None:
    """Wait until the first tile is drawn and labelled exact or sampled."""
    page.wait_for_function(
        "() => /exact|sampled/.test(document.querySelector('.word')?.textContent ?? '')"
    )


def panned(page: Any, seconds: float) -> list[float]:
    """Return the seconds between the frames that Chromium draws while the map is dragged."""
    link, events = page.context.new_cdp_session(page), []
    link.on("Tracing.dataCollected", lambda part: events.extend(part["value"]))
    ended = []
    link.on("Tracing.tracingComplete", lambda part: ended.append(part))
    canvas = page.locator("main canvas").first
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    for _ in range(6):
        page.mouse.wheel(0, -120)
        page.wait_for_timeout(100)
    drag(page, middle, 1)  # fills the page's cache of tiles
    page.wait_for_timeout(2000)
    kinds = ["disabled-by-default-devtools.timeline.frame", "devtools.timeline"]
    link.send("Tracing.start", {"traceConfig": {"includedCategories": kinds}})
    drag(page, middle, seconds)
    link.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(50)
    stamps = sorted(event["ts"] for event in events if event.get("name") == "DrawFrame")
    gaps = [(b - a) / 1e6 for a, b in pairwise(stamps)]
    return [gap for gap in gaps if gap < 1] or [0.0, 0.0]


def drag(page: Any, middle: tuple[float, float], seconds: float) -> None:
    """Drag the map back and forth; each step waits until the browser has processed it."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        page.mouse.move(*middle)
        page.mouse.down()
        for x, y in ((90, 60), (-90, -60), (0, 0)):
            page.mouse.move(middle[0] + x, middle[1] + y, steps=30)
        page.mouse.up()


def pages_beside(folder: Path, sizes: list[int]) -> None:
    """Compare the HTML file of a recording with BertViz's, for a model of GPT-2's shape."""
    print("\na model of 12 layers × 12 heads as one file")
    try:
        from bertviz import head_view
    except ImportError as error:
        head_view = None
        print(f"  BertViz: not measured, it cannot be imported ({error})")
    for tokens in sizes:
        settings = GPTConfig(vocabulary=97, context_length=512, width=768, layers=12, heads=12)
        torch.manual_seed(0)
        model = GPT(settings).eval()
        with torch.no_grad(), heedful.record(model) as recording:
            model(torch.randint(97, (1, tokens)))
        path, began = folder / f"{tokens}.html", time.perf_counter()
        one_file.write(path, Catalogue({"gpt": recording}), "benchmark")
        report(f"heedful, {tokens} tokens", time.perf_counter() - began, "s")
        report("", path.stat().st_size / 1e6, "MB")
        if head_view is not None:
            began = time.perf_counter()
            maps = [call.weights()[None] for call in recording]
            names = [f"word{i}" for i in range(tokens)]
            data = head_view(maps, names, html_action="return").data
            report(f"BertViz, {tokens} tokens", time.perf_counter() - began, "s")
            report("", len(data.encode()) / 1e6, "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer tokens, one minute")
    parser.add_argument("--keep", type=Path, help="a folder to store the recordings in")
    options = parser.parse_args()
    random.seed(0)
    load = os.getloadavg()[0]
    print(machine() + f", load {load:.1f}" + (": UNDER LOAD" if load > MAX_LOAD else ""))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        for tokens in [8192] if options.quick else [32_768, 131_072]:
            path = folder / f"{tokens}.safetensors"
            if not path.exists():
                began = time.perf_counter()
                recorded(tokens, path)
                print(f"{tokens:,} tokens recorded in {time.perf_counter() - began:.0f} s")
            server_part(path, tokens, *((20, 20.0) if options.quick else (100, 60.0)))
            browser_part(path, 3 if options.quick else 10)
        pages_beside(folder, [128] if options.quick else [128, 512])


if __name__ == "__main__":
    main()
