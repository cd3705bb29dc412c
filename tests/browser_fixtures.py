"""Fixtures: a browser for all tests of a process, and pages with recordings of every kind."""

import runpy
from pathlib import Path

import pytest
from explained_models import explained, loaded, walk
from page_reader import Page, Served, is_own, started

from heedful.views.walk.one_file import model_walks, page

SITE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "docs" / "walk_pages.py"))
SHARED = "#call=0.0.0&head=0"  # an address with a view: the page opens no example

__all__ = [
    "_one_file", "_one_page", "browser", "explorer", "file", "filed", "models", "opened", "places",
    "recordings", "served", "shown", "typed", "variants",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    with started() as instance:
        yield instance


@pytest.fixture(scope="session")
def recordings():
    from small_recordings import all_kinds

    return all_kinds()


@pytest.fixture(scope="session")
def served(browser, recordings):
    """An explorer with recordings of all kinds; batches and generations have several texts."""
    with Served(recordings) as explorer:
        yield explorer


class Opening:
    """Opens pages, each in a context of its own, and collects their errors."""

    def __init__(self, browser):
        self.browser, self.contexts, self.watched = browser, [], []

    def __call__(self, address, origin=None, *, allowed=(), **options):
        """Open a page. Errors that contain one of the `allowed` words are ignored.

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
        """Collect errors, dialogs, and requests to other hosts."""
        errors = []
        self.watched.append((errors, allowed))
        page.on("pageerror", lambda error: errors.append(f"error: {error}"))
        page.on("console", lambda entry: entry.type == "error" and errors.append(entry.text))
        page.on("dialog", lambda box: (errors.append(f"dialog: {box.message}"), box.dismiss()))
        page.on("request", lambda sent: is_own(sent.url, origin) or errors.append(sent.url))
        return Page(page, origin)

    def check(self):
        """Fail if a page had errors since the last check."""
        for errors, allowed in self.watched:
            failures = [text for text in errors if not any(word in text for word in allowed)]
            errors.clear()
            assert not failures, f"the page went wrong: {failures}"

    def close(self):
        for context in self.contexts:
            context.close()


@pytest.fixture
def opened(browser):
    """Open pages; an error, a dialog, or a request to another host fails the test."""
    opening = Opening(browser)
    yield opening
    opening.close()
    opening.check()


@pytest.fixture(scope="session")
def filed(recordings, tmp_path_factory):
    """The address of a one-file page with all kinds."""
    from heedful.views.explorer import one_file
    from heedful.views.explorer.catalogue import Catalogue

    path = tmp_path_factory.mktemp("explorer") / "all.html"
    one_file.write(path, Catalogue(recordings), "all kinds")
    return path.as_uri()


@pytest.fixture(scope="module")
def _one_file(browser, filed):
    opening = Opening(browser)
    yield opening, opening(f"{filed}{SHARED}", "file://", offline=True)
    opening.close()


@pytest.fixture
def file(_one_file):
    """The one-file page with all kinds, without a network."""
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
    """The served page with all kinds, shared by all tests of a module."""
    opening, page = _one_page
    yield page
    opening.check()


@pytest.fixture
def places(served):
    """The id of a call, "r.t.c", by the name of its recording and the label of its text."""

    def call(name, text="", layer=0):
        about = served.texts.about()
        r = [recording["name"] for recording in about].index(name)
        labels = [entry["label"] for entry in about[r]["texts"]]
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
    walks = {kind: walk(kind) for kind in ("gpt", "bert", "seq2seq")}
    for kind, walked in walks.items():
        (folder / f"{kind}.html").write_bytes(page(model_walks(walked)))
    return {kind: ((folder / f"{kind}.html").as_uri(), walked) for kind, walked in walks.items()}


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The address of a page that computes a small GPT, and the model."""
    from heedful.text import BPETokenizer, python_reference

    opened = loaded(BPETokenizer.train([python_reference()], 400))
    text = "The import statement"
    path = tmp_path_factory.mktemp("walk") / "typed.html"
    path.write_bytes(page(model_walks(explained(opened, text), opened), text=text))
    return path.as_uri(), opened


@pytest.fixture
def shown(opened):
    """Open a page of a walk offline, at the step that its address names."""

    def call(address, where="", **options):
        page = opened(f"{address}#{where}", **options).page
        page.context.set_offline(True)
        page.get_by_role("heading", level=1).wait_for()
        return page

    return call
