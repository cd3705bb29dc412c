"""A bundler: a page's JavaScript modules as one script, for HTML files, frames, workers and cells.

Each imported module becomes a function that is called once, after the functions of its imports. The
entry module follows as top-level code. Only the forms of import and export that the pages use are
supported; any other form raises an error.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from heedful.errors import RunError

VIEWS = Path(__file__).parent  # module names are paths relative to this folder
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"(\.{1,2}/[^"]+)"')
FROM = r'\s*from\s*"(?P<path>\.{1,2}/[^"]+)";?'
BRACED = r"\{(?P<names>[^{}]*)\}"
DECLARED = re.compile(r"^export ((?:async )?(?:function|class|const|let) (\w+))", re.M)
STARTING = (
    "This page has not started. If this text stays, the file is damaged or incomplete (copy it "
    "again, or write it again), or the browser runs no JavaScript."
)
# it appears late, and the page's script replaces it
LATE = ".starting{animation:late 0s 4s backwards}@keyframes late{from{visibility:hidden}}"
COMMENT = re.compile(r"^\s*(?://[^\n]*|/\*\*(?:(?!\*/).)*\*/)\n", re.M | re.S)


def modules_in_order(entry: Path) -> list[tuple[str, str]]:
    """Return (name, source) of a module and its imports, imports first.

    Comments and indentation are removed.
    """
    sources: dict[str, str] = {}

    def add(module: Path) -> None:
        name = _name(module)
        if name in sources:
            return
        source = COMMENT.sub("", module.read_text("utf-8"))  # imports in comments are of types only
        source = re.sub(r"^[ \t]+", "", source, flags=re.M)
        for _, path in IMPORT.findall(source):
            add(module.parent / path)
        sources[name] = source

    add(entry)
    return list(sources.items())


def one_script(entry: Path) -> str:
    """Return a module and everything that it imports as one module without imports.

    Raises:
        RunError: an import or export has an unsupported form.

    >>> script = one_script(VIEWS / "explorer" / "page" / "html.js")
    >>> script.startswith("const modules = {};"), "import " in script.splitlines()[-1]
    (True, False)
    """
    *parts, (name, source) = modules_in_order(entry)
    definitions = [
        f'modules["{part}"] = (() => {{\n{_body(part, text)}\n}})();' for part, text in parts
    ]
    text = "\n".join(["const modules = {};", *definitions, _resolve_imports(name, source)])
    return text.replace("</script", "<\\/script")


def _resolve_imports(name: str, source: str) -> str:
    """Replace each import by a lookup in `modules`."""

    def braced(match: re.Match[str]) -> str:
        names = ", ".join(f"{outer}: {local}" for outer, local in _name_pairs(match["names"]))
        return f"const {{ {names} }} = {_lookup(name, match)};"

    def default(match: re.Match[str]) -> str:
        return f"const {match['local']} = {_lookup(name, match)}.default;"

    source = re.sub(r"\bimport\s*" + BRACED + FROM, braced, source)
    source = re.sub(r"\bimport\s+(?P<local>\w+)" + FROM, default, source)
    source = re.sub(r'^import\s*"\.{1,2}/[^"]+";?', "", source, flags=re.M)
    return _check_none("import", source, name)


def _body(name: str, source: str) -> str:
    """Return the body of a function that returns the module's exports."""
    exports = [(name, name) for _, name in DECLARED.findall(source)]
    source = DECLARED.sub(r"\1", source)

    def braced(match: re.Match[str]) -> str:
        prefix = f"{_lookup(name, match)}." if match["path"] else ""
        exports.extend((outer, prefix + local) for local, outer in _name_pairs(match["names"]))
        return ""

    source = re.sub(r"\bexport\s*" + BRACED + f"(?:{FROM})?;?", braced, source)
    source, defaults = re.subn(r"\bexport default ", "const defaultExport = ", source)
    exports += [("default", "defaultExport")] * defaults
    source = _check_none("export", _resolve_imports(name, source), name)
    names = ", ".join(f"{outer}: {local}" for outer, local in exports)
    return f"{source}\nreturn {{ {names} }};"


def _check_none(word: str, source: str, name: str) -> str:
    """Return the source if no line begins with `word` (import or export) any more.

    Raises:
        RunError: a line begins with `word`, so it is an unsupported form of import or export.
    """
    if unknown := re.search(rf"^{word}\b(?!\().*", source, re.M):
        raise RunError(
            f"{name}: {unknown[0]}",
            expected="names in braces, a default, or the declaration of a single name",
        )
    return source


def _name_pairs(names: str) -> list[tuple[str, str]]:
    """Parse the names in braces, such as `a, b as c`, into (name, alias) pairs."""
    words = (word.strip().partition(" as ") for word in names.split(",") if word.strip())
    return [(first, alias or first) for first, _, alias in words]


def _lookup(name: str, match: re.Match[str]) -> str:
    """Return the expression for the module that module `name` imports in `match`."""
    return f'modules["{_name((VIEWS / name).parent / match["path"])}"]'


def _name(module: Path) -> str:
    return Path(os.path.normpath(module)).relative_to(VIEWS).as_posix()


def shell(title: str, entry: Path, styles: Sequence[Path], view: str = "") -> tuple[bytes, bytes]:
    """Return the page's HTML before and after its data elements (see `element`).

    Args:
        title: title of the page.
        entry: the entry module; it and its imports lie under `views`.
        styles: style sheets, in cascade order.
        view: the initial view, as a query string, for pages without an address bar.

    >>> from heedful.views.bundler import VIEWS
    >>> begin, end = shell("a <page>", VIEWS / "explorer" / "page" / "html.js", [])
    >>> b"<title>a &lt;page&gt;</title>" in begin, end.endswith(b"</html>\\n")
    (True, True)
    """
    script = one_script(entry)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; worker-src data:; "
        "style-src 'unsafe-inline'; img-src blob: data:; connect-src 'none'; base-uri 'none'; "
        "form-action 'none'"
    )
    style = "".join(sheet.read_text("utf-8") for sheet in styles)
    begin = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f'<style>{LATE}</style></head>\n<body><div id="heedful" data-view="{html.escape(view)}">'
        f'<p class="starting">{STARTING}</p></div>\n<style>{style}</style>\n'
    )
    end = f'<script type="module">{script}</script></body></html>\n'
    # the title may contain surrogates, from a file name that is not valid UTF-8
    return begin.encode("utf-8", "replace"), end.encode()


def element(name: str, data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Return bytes as an HTML element, deflated (with a zlib strategy) and in base64.

    >>> element("numbers", b"").startswith(b'<script type="application/octet-stream" id="numbers">')
    True
    """
    deflate = zlib.compressobj(strategy=strategy)
    text = base64.b64encode(deflate.compress(data) + deflate.flush())
    return f'<script type="application/octet-stream" id="{name}">'.encode() + text + b"</script>\n"
