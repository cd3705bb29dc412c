"""Hooks of the documentation build: lessons become pages, and LaTeX becomes MathML.

The cells of a notebook are joined as Markdown, so a lesson is a page like all others: searchable,
without scripts, with a link to download its notebook. A mention of "document 002" becomes a link.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64decode
from pathlib import Path

from latex2mathml.converter import convert
from properdocs.structure.files import File
from properdocs.utils import get_relative_url

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
DOCUMENT = re.compile(r"\b[Dd]ocument (00[0-4])\b")
TITLED = re.compile(r"^\| \[(\d{3})\]\(#document-\1\) \| (.+?) \| (.+?) \|", re.MULTILINE)
UNLINKED = re.compile(r"(<(a|code|pre|h[1-6])\b.*?</\2>|<[^>]*>)", re.DOTALL)
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}


def on_config(config):
    """Add the lessons to the navigation, sorted by number."""
    lessons = next(entry["Lessons"] for entry in config.nav if "Lessons" in entry)
    for path in sorted(Path(config.docs_dir, "lessons").glob("*.ipynb"), key=_number):
        title = _cells(path)[0][1].partition("\n")[0].removeprefix("# Lesson ").replace(": ", " · ")
        lessons.append({title: f"lessons/{path.stem}.md"})
    return config


def on_files(files, config):
    """Add the page and the pictures of each notebook."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        uri = notebook.src_uri.removesuffix(".ipynb")
        page, pictures = _page(Path(notebook.abs_src_path), uri)
        files.append(File.generated(config, f"{uri}.md", content=page))
        for name, data in pictures.items():
            files.append(File.generated(config, f"lessons/{name}", content=data))
    return files


def on_page_markdown(markdown, page, **_):
    """Point links to notebooks at their pages, and link the rows of the table of lessons."""
    markdown = re.sub(r"(\]\([\w./-]+)\.ipynb(?=[)#])(?!\)\{ download)", r"\1.md", markdown)
    if page.file.src_uri == "lessons/index.md":
        for path in Path(page.file.abs_src_path).parent.glob("*.ipynb"):
            row = re.compile(rf"^\| ({path.stem.partition('-')[0]} [^|]+?) \|", re.MULTILINE)
            markdown = row.sub(rf"| [\1]({path.stem}.md) |", markdown)
    return markdown


def on_page_content(content, page, config, **_):
    """Convert formulas to MathML, and link mentions of documents."""

    def mathml(match):
        display = "inline" if match[1] == "span" else "block"
        return convert(html.unescape(match[2]).strip(), display=display)

    content = FORMULA.sub(mathml, content)
    return content if page.file.src_uri == "documents.md" else _linked(content, page, config)


def _linked(content, page, config):
    """Link each "document 002" outside code, headings and links; the tooltip is its title."""
    text = Path(config.docs_dir, "documents.md").read_text("utf-8")
    titles = {
        number: f"{title}, {by}".replace("*", "") for number, title, by in TITLED.findall(text)
    }
    url = get_relative_url("documents.html", page.url)

    def link(match):
        title = html.escape(titles[match[1]])
        return f'<a href="{url}#document-{match[1]}" title="{title}">{match[0]}</a>'

    parts = UNLINKED.split(content)  # text, unlinked element, its tag name; text, …
    return "".join(
        part if index % 3 == 1 else DOCUMENT.sub(link, part)
        for index, part in enumerate(parts)
        if index % 3 != 2
    )


def _number(path):
    return int(path.stem.partition("-")[0])


def _cells(path):
    """Return (type, source, outputs, metadata) of each cell."""
    return [
        (cell["cell_type"], "".join(cell["source"]), cell.get("outputs", []), cell["metadata"])
        for cell in json.loads(path.read_text("utf-8"))["cells"]
    ]


def _page(path, uri):
    """Return the Markdown of a notebook, and a dict of its pictures by file name."""
    parts, pictures = [], {}
    for kind, source, outputs, metadata in _cells(path):
        if kind == "markdown":
            source = re.sub(r"\.ipynb(?=[)#])", ".md", source)
            parts.append(source.replace("<details>", '<details markdown="1">'))
            continue
        parts.append(_fence("python", source))
        for output in outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            mime = next(iter(data))
            if mime in PICTURES:
                name = f"{path.stem}-{len(pictures) + 1}.{PICTURES[mime]}"
                pictures[name] = _bytes(mime, data[mime])
                parts.append(f"![{metadata.get('alt', '')}]({name}){{ .picture }}")
            else:
                parts.append(_fence("{ .text .output }", "".join(data[mime]).rstrip("\n")))
    parts.append(f"[This lesson as a notebook]({path.name}){{ download .quiet }}")
    return "\n\n".join(parts), pictures


def _bytes(mime, data):
    text = "".join(data)
    return b64decode(text) if mime == "image/png" else text.encode()


def _fence(language, text):
    return f"````{language}\n{text}\n````"
