"""The site builds without a warning, needs no network, and has a place for every public name."""

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
    """What a page loads and links to, its anchors, its text, and its pictures' descriptions."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.links, self.anchors, self.descriptions = [], [], set(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id"))
        if found.get(LOADED.get(tag)):
            self.loaded.append(found[LOADED[tag]])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "img":
            self.descriptions.append(found.get("alt"))


def build(out):
    """The site, strict: a warning is an error. (--quiet would hide warnings from --strict.)"""
    built = subprocess.run(
        [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return {path.relative_to(out): Page(path) for path in out.rglob("*.html")}


def test_the_site(tmp_path):
    """One test, since the build takes most of its time."""
    pages = build(tmp_path)
    nothing_comes_from_elsewhere(tmp_path, pages)
    links_and_pictures_lead_somewhere(tmp_path, pages)
    every_lesson_is_a_page(tmp_path, pages)
    every_public_name_has_its_place(pages)
    descriptions = [text for page in pages.values() for text in page.descriptions]
    assert descriptions
    assert all(descriptions)
    words = {path: (tmp_path / path).read_text("utf-8") for path in pages}
    assert any("<math " in page for page in words.values())  # formulas need no script
    assert not any("arithmatex" in page for page in words.values())
    for path in words:  # a bare `>>>` is a quotation of a quotation to Markdown
        assert path.parent.name != "reference" or "<blockquote" not in words[path], path


def nothing_comes_from_elsewhere(site, pages):
    for path, page in pages.items():
        outside = [url for url in page.loaded if urlsplit(url).netloc]
        assert not outside, f"{path} loads {outside}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text("utf-8"))


def links_and_pictures_lead_somewhere(site, pages):
    """To a place on the page too; those of a walk are followed in tests/browser."""
    pages = {site / path: page for path, page in pages.items()}
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of a server
            continue
        for url in [*page.loaded, *page.links]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name} names {url}"
            if parts.fragment and target in pages and not target.name.startswith("walk"):
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {url}"


def every_lesson_is_a_page(site, pages):
    for notebook in (ROOT / "docs" / "lessons").glob("*.ipynb"):
        page = Path("lessons", f"{notebook.stem}.html")
        assert page in pages
        words = (site / page).read_text("utf-8")
        assert "```" not in words  # code inside an answer became code
        assert page.name in pages[Path("lessons", "index.html")].links


def every_public_name_has_its_place(pages):
    """Among the anchors that mkdocstrings gives, `heedful.room.….name`."""
    anchors = set().union(*(page.anchors for page in pages.values())) - {None}
    for room in ROOMS:
        module = import_module(f"heedful.{room}")
        public = getattr(module, "__all__", None) or [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
        ]
        names = {name for name in public if callable(getattr(module, name))}
        there = {a.rpartition(".")[2] for a in anchors if a.startswith(f"heedful.{room}")}
        assert names, room
        assert names <= there, f"docs/reference has no place for {names - there} of {room}"
