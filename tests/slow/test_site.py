"""The site builds without a warning, needs no network, and describes every public name."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
ROOMS = ("ops", "layers", "models", "text", "loaded", "train", "errors", "generate")


class Page(HTMLParser):
    """The loaded files, links, anchors and descriptions of pictures of a page."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.links, self.anchors, self.descriptions = [], [], set(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id"))
        if values.get(LOADED.get(tag)):
            self.loaded.append(values[LOADED[tag]])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "img":
            self.descriptions.append(values.get("alt"))


def build(out):
    """Build the site; --strict makes a warning an error, unless --quiet hides it."""
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", out]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return {path.relative_to(out): Page(path) for path in out.rglob("*.html")}


def test_the_site(tmp_path):
    """A single test, since the build takes most of the time."""
    pages = build(tmp_path)
    check_no_external_files(tmp_path, pages)
    check_links(tmp_path, pages)
    check_lessons(tmp_path, pages)
    check_public_names(pages)
    descriptions = [text for page in pages.values() for text in page.descriptions]
    assert descriptions
    assert all(descriptions)
    words = {path: (tmp_path / path).read_text("utf-8") for path in pages}
    assert any("<math " in page for page in words.values())  # formulas need no script
    assert not any("arithmatex" in page for page in words.values())
    for path in words:  # Markdown turns a bare `>>>` into nested quotations
        assert path.parent.name != "reference" or "<blockquote" not in words[path], path


def check_no_external_files(site, pages):
    for path, page in pages.items():
        outside = [url for url in page.loaded if urlsplit(url).netloc]
        assert not outside, f"{path} loads {outside}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text("utf-8"))


def check_links(site, pages):
    """Check that targets and anchors exist; tests/browser follows the links into a walk."""
    pages = {site / path: page for path, page in pages.items()}
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the root of a server
            continue
        for url in [*page.loaded, *page.links]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name} names {url}"
            if parts.fragment and target in pages and not target.name.startswith("walk"):
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {url}"


def check_lessons(site, pages):
    for notebook in (ROOT / "docs" / "lessons").glob("*.ipynb"):
        page = Path("lessons", f"{notebook.stem}.html")
        assert page in pages
        words = (site / page).read_text("utf-8")
        assert "```" not in words  # the code of answers is converted
        assert page.name in pages[Path("lessons", "index.html")].links


def check_public_names(pages):
    """Check that mkdocstrings has written an anchor `heedful.room.….name` for each public name."""
    anchors = set().union(*(page.anchors for page in pages.values())) - {None}
    for room in ROOMS:
        module = import_module(f"heedful.{room}")
        public = getattr(module, "__all__", None) or [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
        ]
        names = {name for name in public if callable(getattr(module, name))}
        described = {a.rpartition(".")[2] for a in anchors if a.startswith(f"heedful.{room}")}
        assert names, room
        assert names <= described, f"docs/reference lacks {names - described} of {room}"
