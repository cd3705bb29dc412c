"""The explorer's page as a person has it in a browser, and what stands in it."""

import contextlib
import os
import re
import shutil
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
import uvicorn

from heedful.views.explorer.catalogue import Texts
from heedful.views.explorer.handlers import Answers
from heedful.views.explorer.server import Explorer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# what a browser asks its maker in the background would be a request to another host
QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update",
         "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # fmt: skip
# another address, and the event that comes once the page was told of it
SHOW = """address => new Promise((done) => {
  const before = location.hash;
  addEventListener("hashchange", done, { once: true });
  location.hash = address;
  if (location.hash === before) done();
}).then(() => null)"""
# a recording of each kind: its name, which text, and which call
KINDS = {
    "causal": ("causal", "", 1),
    "windowed": ("windowed", "", 0),
    "grouped": ("grouped", "", 1),
    "values": ("with values", "", 1),
    "padded": ("padded", "text 2", 1),
    "cross": ("cross", "", 2),
    "stitched": ("generated", "as one", 1),
    "pass by pass": ("generated", "pass by pass", 5),
    "capped": ("capped", "", 0),
    "sinks": ("sinks", "", 0),
    "biased": ("biased", "", 0),
}
REQUIRED = "HEEDFUL_BROWSER"  # "required": a browser that is missing is a failure


def lacking(reason):
    """Skip, saying why; fail where a browser must be there."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{REQUIRED}=required, and {reason}")
    pytest.skip(reason)


def executable():
    """The path of a Chromium."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or lacking("no chromium is installed: apt-get install chromium")


@contextlib.contextmanager
def started():
    """A browser of its own profile."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("no playwright is installed: pip install playwright")
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


class Served:
    """Recordings on a free port, until it is left; `generation` makes one for their texts."""

    def __init__(self, recordings, model=None, generation=lambda texts: None):
        self.texts = Texts(recordings)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        self.origin = f"http://127.0.0.1:{port}"
        self.explorer = Explorer(Answers(self.texts), port, model, generation(self.texts))
        self.address = f"{self.origin}/?word={self.explorer.word}"
        config = uvicorn.Config(self.explorer.app, log_level="error", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error):
        self._server.should_exit = True
        self._thread.join(10)
        self.explorer.turns.end()
        self._socket.close()


class Page:
    """A page of the explorer, read by the roles and names that a screen reader has."""

    def __init__(self, page, origin):
        self.page, self.origin = page, origin
        self.region = page.get_by_role("region", name="This weight")

    def show(self, **view):
        """What the address says; a call is named as in it, "0.0.1"."""
        written = "#" + urlencode(view, safe=",.")
        self.page.evaluate(SHOW, written)  # and the page has read it, or a key might come before

    def cell(self, call, head, query, key, **more):
        """Choose a cell by the address, and wait until its numbers are there."""
        self.show(call=call, head=head, cell=f"{query},{key}", pinned=1, **more)
        self.made(head, query, key)
        return self

    def made(self, head, query, key):
        """Wait for the numbers of a cell, and for the names of the tokens in its text."""
        line = f"weights(head={head}, queries=[{query}], keys=[{key}])"
        self.region.get_by_text(line).wait_for()
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('bdi.place')].every(one => one.innerText !== '…')"
        )

    def soon(self, check, seconds=20):
        """What a check returns once it holds, while the page is still being told."""
        end = time.monotonic() + seconds
        while True:
            try:
                return check()
            except AssertionError:
                if time.monotonic() > end:
                    raise
            self.page.wait_for_timeout(20)

    @property
    def weight(self):
        """The number that stands largest, as text."""
        return self.region.locator("[data-weight]").first.inner_text().split("\n")[0]

    def steps(self):
        """What makes the weight: each step's words and its number."""
        return pairs(self.region)

    def table(self, name):
        """The cells of a table, row by row, without its head."""
        rows = self.region.get_by_role("table", name=name).locator("tbody tr")
        return rows.evaluate_all("all => all.map((row) => [...row.cells].map((c) => c.innerText))")

    def downloaded(self, name):
        """The path of what a button of the menu Save saves."""
        self.page.get_by_role("button", name="Save", exact=True).click()
        with self.page.expect_download() as given:
            self.page.get_by_role("button", name=re.compile(f"^{name} ")).click()
        return Path(given.value.path()), given.value.suggested_filename


def pairs(part):
    """The words and the numbers of lists in a part of the page."""
    words, numbers = (part.locator(name).all_inner_texts() for name in ("dt", "dd"))
    return list(zip(words, numbers, strict=True))


def number(text):
    """A number as the page writes it: −1.5, 3.2e−7, ∞."""
    text = text.strip().replace("−", "-").replace(",", "")
    return float({"∞": "inf", "-∞": "-inf", "–": "nan"}.get(text, text))


def unit(text):
    """How much the last printed digit of a number counts."""
    digits, _, power = text.strip().replace("−", "-").partition("e")
    decimals = len(digits.partition(".")[2])
    return 10.0 ** (int(power or 0) - decimals)


def as_shown(text, true):
    """Whether a printed number is a true one, rounded to its digits."""
    shown = number(text)
    if not re.search(r"\d", text):
        return shown == true or (shown != shown and true != true)
    return abs(shown - true) <= 0.5 * unit(text) * (1 + 1e-6) + 2e-6 * abs(true)


def is_own(url, origin):
    """Whether a request leaves the page's own host."""
    return urlsplit(url).scheme in ("blob", "data", "file", "about") or url.startswith(origin)


def faults(page):
    """What axe finds that is serious or worse, in short."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        lacking("no axe is installed: pip install axe-playwright-python")
    found = Axe().run(page).response["violations"]
    return [
        (one["id"], one["help"], [node["html"][:120] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
