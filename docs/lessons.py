"""What mkdocs calls while it builds the site: lessons become pages, LaTeX becomes MathML, and
whoever reads of "document 002" is one click from its title.

A notebook's cells are joined as Markdown, so a lesson looks like every other page, is searched
like one, and needs no script. The notebook itself stays beside the page to be downloaded.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64decode
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
DOCUMENT = re.compile(r"\b[Dd]ocument (00[0-4])\b")
TITLED = re.compile(r"^\| \[(\d{3})\]\(#document-\1\) \| (.+?) \| (.+?) \|", re.MULTILINE)
LEFT_ALONE = re.compile(r"(<(a|code|pre|h[1-6])\b.*?</\2>|<[^>]*>)", re.DOTALL)
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}


def on_config(config):
    """Add the lessons to the navigation, by their numbers."""
    lessons = next(entry["Lessons"] for entry in config.nav if "Lessons" in entry)
    for path in sorted(Path(config.docs_dir, "lessons").glob("*.ipynb"), key=_number):
        title = _cells(path)[0][1].partition("\n")[0].removeprefix("# Lesson ").replace(": ", " · ")
        lessons.append({title: f"lessons/{path.stem}.md"})
    return config


def on_files(files, config):
    """Beside each notebook, its page and its pictures."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        uri = notebook.src_uri.removesuffix(".ipynb")
        page, pictures = _page(Path(notebook.abs_src_path), uri)
        files.append(File.generated(config, f"{uri}.md", content=page))
        for name, data in pictures.items():
            files.append(File.generated(config, f"lessons/{name}", content=data))
    return files


def on_page_markdown(markdown, page, **_):
    """Links to notebooks lead to their pages, and the table of the lessons to those there are."""
    markdown = re.sub(r"(\]\([\w./-]+)\.ipynb(?=[)#])(?!\)\{ download)", r"\1.md", markdown)
    if page.file.src_uri == "lessons/index.md":
        for path in Path(page.file.abs_src_path).parent.glob("*.ipynb"):
            row = re.compile(rf"^\| ({path.stem.partition('-')[0]} [^|]+?) \|", re.MULTILINE)
            markdown = row.sub(rf"| [\1]({path.stem}.md) |", markdown)
    return markdown


def on_page_content(content, page, config, **_):
    """Formulas that the browser draws by itself; documents, each with a link to its title."""

    def drawn(found):
        display = "inline" if found[1] == "span" else "block"
        return convert(html.unescape(found[2]).strip(), display=display)

    content = FORMULA.sub(drawn, content)
    return content if page.file.src_uri == "documents.md" else _linked(content, page, config)


def _linked(content, page, config):
    """Each "document 002" outside of code, headings and links becomes a link, with its title."""
    text = Path(config.docs_dir, "documents.md").read_text("utf-8")
    titles = {
        number: f"{title}, {by}".replace("*", "") for number, title, by in TITLED.findall(text)
    }
    url = get_relative_url("documents.html", page.url)

    def link(found):
        title = html.escape(titles[found[1]])
        return f'<a href="{url}#document-{found[1]}" title="{title}">{found[0]}</a>'

    parts = LEFT_ALONE.split(content)  # text, what is left alone, its name; text, …
    return "".join(
        part if place % 3 == 1 else DOCUMENT.sub(link, part)
        for place, part in enumerate(parts)
        if place % 3 != 2
    )


def _number(path):
    return int(path.stem.partition("-")[0])


def _cells(path):
    """(kind, source, outputs, metadata) of each cell."""
    return [
        (cell["cell_type"], "".join(cell["source"]), cell.get("outputs", []), cell["metadata"])
        for cell in json.loads(path.read_text("utf-8"))["cells"]
    ]


def _page(path, uri):
    """The Markdown of a notebook, and its pictures by their names."""
    parts, pictures = [], {}
    for kind, source, outputs, metadata in _cells(path):
        if kind == "markdown":
            source = re.sub(r"\.ipynb(?=[)#])", ".md", source)
            parts.append(source.replace("<details>", '<details markdown="1">'))
            continue
        parts.append(_fence("python", source))
        for output in outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            shown = next(iter(data))
            if shown in PICTURES:
                name = f"{path.stem}-{len(pictures) + 1}.{PICTURES[shown]}"
                pictures[name] = _bytes(shown, data[shown])
                parts.append(f"![{metadata.get('alt', '')}]({name}){{ .picture }}")
            else:
                parts.append(_fence("{ .text .output }", "".join(data[shown]).rstrip("\n")))
    parts.append(f"[This lesson as a notebook]({path.name}){{ download .quiet }}")
    return "\n\n".join(parts), pictures


def _bytes(kind, data):
    text = "".join(data)
    return b64decode(text) if kind == "image/png" else text.encode()


def _fence(language, text):
    return f"````{language}\n{text}\n````"
