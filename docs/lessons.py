"""What mkdocs calls while it builds the site: lessons become pages, LaTeX becomes MathML.

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

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
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
    """The table of the lessons leads to those that are there."""
    if page.file.src_uri == "lessons/index.md":
        for path in Path(page.file.abs_src_path).parent.glob("*.ipynb"):
            row = re.compile(rf"^\| ({path.stem.partition('-')[0]} [^|]+?) \|", re.MULTILINE)
            markdown = row.sub(rf"| [\1]({path.stem}.md) |", markdown)
    return markdown


def on_page_content(content, **_):
    """Formulas that the browser draws by itself."""

    def drawn(found):
        display = "inline" if found[1] == "span" else "block"
        return convert(html.unescape(found[2]).strip(), display=display)

    return FORMULA.sub(drawn, content)


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
