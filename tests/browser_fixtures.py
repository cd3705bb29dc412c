"""A browser for all tests of a process, and the page with recordings of every kind."""

import runpy
from pathlib import Path

import pytest
from browsed import Page, Served, is_own, started
from walks import walk

from heedful.views.walk.one_file import of_explanation, page

SITE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "docs" / "walks.py"))
SHARED = "#call=0.0.0&head=0"  # a view that was shared: no example is opened in its place

__all__ = [
    "_one_file", "_one_page", "browser", "explorer", "file", "filed", "models", "opened", "places",
    "recordings", "served", "shown", "variants",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    with started() as found:
        yield found


@pytest.fixture(scope="session")
def recordings():
    from every_kind import all_kinds

    return all_kinds()


@pytest.fixture(scope="session")
def served(browser, recordings):
    """All kinds in one explorer; of a batch and a generation there are several texts."""
    with Served(recordings) as explorer:
        yield explorer


class Opening:
    """Opens pages, each in a context of its own, and knows what went wrong in them."""

    def __init__(self, browser):
        self.browser, self.contexts, self.watched = browser, [], []

    def __call__(self, address, origin=None, *, allowed=(), **options):
        """A page. `allowed` are words of errors that belong to the test.

        Further options are those of the browser's context.
        """
        options = {"viewport": {"width": 1360, "height": 860}, "reduced_motion": "reduce"} | options
        context = self.browser.new_context(**options)
        context.set_default_timeout(20_000)
        self.contexts.append(context)
        page = self.watch(
            context.new_page(), origin or address.partition("?")[0].rstrip("/"), allowed
        )
        page.page.goto(address)
        return page

    def watch(self, page, origin, allowed=()):
        """Note errors, dialogs, and requests to another host."""
        found = []
        self.watched.append((found, allowed))
        page.on("pageerror", lambda error: found.append(f"error: {error}"))
        page.on("console", lambda said: said.type == "error" and found.append(said.text))
        page.on("dialog", lambda box: (found.append(f"dialog: {box.message}"), box.dismiss()))
        page.on("request", lambda asked: is_own(asked.url, origin) or found.append(asked.url))
        return Page(page, origin)

    def check(self):
        """Fail where a page went wrong since the last check."""
        for found, allowed in self.watched:
            left = [one for one in found if not any(word in one for word in allowed)]
            found.clear()
            assert not left, f"the page went wrong: {left}"

    def close(self):
        for context in self.contexts:
            context.close()


@pytest.fixture
def opened(browser):
    """Open pages; an error in one, a dialog, or a request to another host fails the test."""
    opening = Opening(browser)
    yield opening
    opening.close()
    opening.check()


@pytest.fixture(scope="session")
def filed(recordings, tmp_path_factory):
    """The address of a file with all kinds."""
    from heedful.views.explorer import one_file
    from heedful.views.explorer.catalogue import Texts

    path = tmp_path_factory.mktemp("explorer") / "all.html"
    one_file.write(path, Texts(recordings), "all kinds")
    return path.as_uri()


@pytest.fixture(scope="module")
def _one_file(browser, filed):
    opening = Opening(browser)
    yield opening, opening(f"{filed}{SHARED}", "file://", offline=True)
    opening.close()


@pytest.fixture
def file(_one_file):
    """The page of all kinds as one file, with no network."""
    opening, page = _one_file
    yield page
    opening.check()


@pytest.fixture(scope="module")
def _one_page(browser, served):
    opening = Opening(browser)
    yield opening, opening(f"{served.address}{SHARED}", served.origin)
    opening.close()


@pytest.fixture
def explorer(_one_page):
    """The page of all kinds, the same for all tests of a module."""
    opening, page = _one_page
    yield page
    opening.check()


@pytest.fixture
def places(served):
    """The address of a call, "r.t.c", by the name of its recording and the label of its text."""

    def call(name, text="", layer=0):
        about = served.texts.about()
        r = [one["name"] for one in about].index(name)
        labels = [one["label"] for one in about[r]["texts"]]
        t = next(i for i, label in enumerate(labels) if text in label)
        return f"{r}.{t}.{layer}", served.texts.call(r, t, layer)

    return call


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    path = tmp_path_factory.mktemp("walk") / "variants.html"
    path.write_bytes(SITE["variants"]())
    return path.as_uri()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    found = {kind: walk(kind) for kind in ("gpt", "bert", "seq2seq")}
    for kind, one in found.items():
        (folder / f"{kind}.html").write_bytes(page(of_explanation(one)))
    return {kind: ((folder / f"{kind}.html").as_uri(), one) for kind, one in found.items()}


@pytest.fixture
def shown(opened):
    """A page of a walk, offline; where it stands is its address."""

    def call(address, where="", **options):
        page = opened(f"{address}#{where}", **options).page
        page.context.set_offline(True)
        page.get_by_role("heading", level=1).wait_for()
        return page

    return call
