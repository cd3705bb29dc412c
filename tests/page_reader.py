"""The explorer's page in a browser, read by its roles and texts."""

import contextlib
import os
import re
import shutil
import threading
import time
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.server import Explorer, listening

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# options that stop background requests of the browser to other hosts
QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update",
         "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # fmt: skip
# set the address, and wait until the page has received the event
SHOW = """address => new Promise((done) => {
  const before = location.hash;
  addEventListener("hashchange", done, { once: true });
  location.hash = address;
  if (location.hash === before) done();
}).then(() => null)"""
# for each kind: the name of the recording, the label of the text, the index of the call
KINDS = {
    "causal": ("causal", "", 1),
    "windowed": ("windowed", "", 0),
    "grouped": ("grouped", "", 1),
    "values": ("with values", "", 1),
    "padded": ("padded", "text 2", 1),
    "cross": ("cross", "", 2),
    "stitched": ("generated", "all passes", 1),
    "pass by pass": ("generated", "pass by pass", 5),
    "capped": ("capped", "", 0),
    "sinks": ("sinks", "", 0),
    "biased": ("biased", "", 0),
}
REQUIRED = "HEEDFUL_BROWSER"  # "required": a missing browser is a failure


def lacking(reason):
    """Skip the test with a reason; fail if a browser is required."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{REQUIRED}=required, and {reason}")
    pytest.skip(reason)


def executable():
    """The path of a Chromium."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return path or lacking("no chromium is installed: apt-get install chromium")


@contextlib.contextmanager
def started():
    """A context with a browser that has a new profile."""
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
    """A context that serves recordings on a free port, optionally with a model or a generation."""

    def __init__(self, recordings, models=None, generation=lambda texts: None):
        self.texts = Catalogue(recordings)
        self._socket = listening(0)
        port = self._socket.getsockname()[1]
        self.origin = f"http://127.0.0.1:{port}"
        self.explorer = Explorer(Handlers(self.texts), port, models, generation(self.texts))
        self._server = self.explorer.server()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    @property
    def address(self):
        """A new address, which opens the page once."""
        return self.explorer.new_address()

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error):
        self._server.should_exit = True
        self._thread.join(10)
        self.explorer.worker.shutdown()
        self._socket.close()


class Page:
    """A page of the explorer, read by its accessible roles and names."""

    def __init__(self, page, origin):
        self.page, self.origin = page, origin
        self.region = page.get_by_role("region", name="This weight")

    def show(self, **view):
        """Set the address; `call` is given as in the address, "0.0.1"."""
        written = "#" + urlencode(view, safe=",.")
        self.page.evaluate(SHOW, written)  # waits, so that later keys act on the new view

    def cell(self, call, head, query, key, **more):
        """Choose a cell by the address, and wait until its numbers are loaded."""
        self.show(call=call, head=head, cell=f"{query},{key}", pinned=1, **more)
        self.wait_for_weight(head, query, key)
        return self

    def wait_for_weight(self, head, query, key):
        """Wait for the numbers of a cell, and for the names of the tokens in its text."""
        line = f"weights(head={head}, queries=[{query}], keys=[{key}])"
        self.region.get_by_text(line).wait_for()
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('bdi.place')].every(e => e.innerText !== '…')"
        )

    def soon(self, check, seconds=20):
        """Repeat a check until it passes; return its result."""
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
        """The displayed weight, as text."""
        return self.region.locator("[data-weight]").first.inner_text().split("\n")[0]

    def steps(self):
        """The steps of the calculation: label and number."""
        return pairs(self.region)

    def table(self, name):
        """The cells of a table, row by row, without its header."""
        rows = self.region.get_by_role("table", name=name).locator("tbody tr")
        return rows.evaluate_all("all => all.map((row) => [...row.cells].map((c) => c.innerText))")

    def downloaded(self, name):
        """The path and the name of the file that a button of the menu Save downloads."""
        self.page.get_by_role("button", name="Save", exact=True).click()
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=re.compile(f"^{name} ")).click()
        return Path(download.value.path()), download.value.suggested_filename


def pairs(part):
    """Terms and values of the description lists in a part of the page."""
    words, numbers = (part.locator(name).all_inner_texts() for name in ("dt", "dd"))
    return list(zip(words, numbers, strict=True))


def number(text):
    """Parse a number in the page's format: −1.5, 3.2e−7, ∞."""
    text = text.strip().replace("−", "-").replace(",", "")
    return float({"∞": "inf", "-∞": "-inf"}.get(text, text))


def unit(text):
    """The unit of the last digit of a number."""
    digits, _, power = text.strip().replace("−", "-").partition("e")
    decimals = len(digits.partition(".")[2])
    return 10.0 ** (int(power or 0) - decimals)


def as_shown(text, true):
    """Whether a displayed number equals a true one, rounded to its digits."""
    shown = number(text)
    if not re.search(r"\d", text):
        return shown == true or (shown != shown and true != true)
    return abs(shown - true) <= 0.5 * unit(text) * (1 + 1e-6) + 2e-6 * abs(true)


def is_own(url, origin):
    """Whether a request stays on the page's own host."""
    return urlsplit(url).scheme in ("blob", "data", "file", "about") or url.startswith(origin)


def faults(page):
    """The serious and critical violations that axe finds."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        lacking("no axe is installed: pip install axe-playwright-python")
    violations = Axe().run(page).response["violations"]
    return [
        (fault["id"], fault["help"], [node["html"][:120] for node in fault["nodes"][:3]])
        for fault in violations
        if fault["impact"] in ("serious", "critical")
    ]
