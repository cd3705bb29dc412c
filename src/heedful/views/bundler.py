"""A page's modules as one script, for where a browser fetches none: files, frames, workers, cells.

Every module becomes a function that is called once, after those that it imports; the first one
stands behind them as it is. Only the ways of importing and exporting that the pages use are known;
another one is refused.
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

VIEWS = Path(__file__).parent  # modules are named by their paths from here
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"(\.{1,2}/[^"]+)"')
FROM = r'\s*from\s*"(?P<path>\.{1,2}/[^"]+)";?'
LISTED = r"\{(?P<names>[^{}]*)\}"
DECLARED = re.compile(r"^export ((?:async )?(?:function|class|const|let) (\w+))", re.M)
REMARK = re.compile(r"^\s*(?://[^\n]*|/\*\*(?:(?!\*/).)*\*/)\n", re.M | re.S)


def linked(entry: Path) -> list[tuple[str, str]]:
    """Each module's name and source, without remarks, after those that it imports."""
    found: dict[str, str] = {}

    def add(module: Path) -> None:
        name = _name(module)
        if name in found:
            return
        source = _plain(module.read_text("utf-8"))  # remarks import types alone
        for _, path in IMPORT.findall(source):
            add(module.parent / path)
        found[name] = source

    add(entry)
    return list(found.items())


def one_script(entry: Path) -> str:
    """A module and all that it imports, as one module without an import.

    Raises:
        RunError: an import or an export of a form that is not known.

    >>> script = one_script(VIEWS / "explorer" / "page" / "html.js")
    >>> script.startswith("const modules = {};"), "import " in script.splitlines()[-1]
    (True, False)
    """
    *parts, (name, source) = linked(entry)
    called = [
        f'modules["{part}"] = (() => {{\n{_function(part, text)}\n}})();' for part, text in parts
    ]
    text = "\n".join(["const modules = {};", *called, _imports(name, source)])
    return text.replace("</script", "<\\/script")


def _plain(source: str) -> str:
    """Without remarks and indents."""
    return re.sub(r"^[ \t]+", "", REMARK.sub("", source), flags=re.M)


def _imports(name: str, source: str) -> str:
    """The source with what it imports taken from the modules."""

    def listed(found: re.Match[str]) -> str:
        taken = ", ".join(f"{theirs}: {ours}" for theirs, ours in _pairs(found["names"]))
        return f"const {{ {taken} }} = {_module(name, found)};"

    def standard(found: re.Match[str]) -> str:
        return f"const {found['ours']} = {_module(name, found)}.default;"

    source = re.sub(r"\bimport\s*" + LISTED + FROM, listed, source)
    source = re.sub(r"\bimport\s+(?P<ours>\w+)" + FROM, standard, source)
    source = re.sub(r'^import\s*"\.{1,2}/[^"]+";?', "", source, flags=re.M)
    return _without("import", source, name)


def _function(name: str, source: str) -> str:
    """The body of a function that returns what the module exports."""
    given = [(each, each) for _, each in DECLARED.findall(source)]
    source = DECLARED.sub(r"\1", source)

    def listed(found: re.Match[str]) -> str:
        of = f"{_module(name, found)}." if found["path"] else ""
        given.extend((ours, of + theirs) for theirs, ours in _pairs(found["names"]))
        return ""

    source = re.sub(r"\bexport\s*" + LISTED + f"(?:{FROM})?;?", listed, source)
    source, standard = re.subn(r"\bexport default ", "const standard = ", source)
    given += [("default", "standard")] * standard
    source = _without("export", _imports(name, source), name)
    names = ", ".join(f"{ours}: {own}" for ours, own in given)
    return f"{source}\nreturn {{ {names} }};"


def _without(word: str, source: str, name: str) -> str:
    """The source, in which no line begins with a word any more.

    Raises:
        RunError: one does, as its form is not known.
    """
    if unknown := re.search(rf"^{word}\b(?!\().*", source, re.M):
        raise RunError(
            f"{name}: {unknown[0]}",
            expected="names in braces, a default, or one name that is declared",
        )
    return source


def _pairs(names: str) -> list[tuple[str, str]]:
    """Of names in braces, each as it is called there, and here."""
    words = (each.strip().partition(" as ") for each in names.split(",") if each.strip())
    return [(theirs, ours or theirs) for theirs, _, ours in words]


def _module(name: str, found: re.Match[str]) -> str:
    """How a module is reached that another one imports."""
    return f'modules["{_name((VIEWS / name).parent / found["path"])}"]'


def _name(module: Path) -> str:
    return Path(os.path.normpath(module)).relative_to(VIEWS).as_posix()


def shell(title: str, entry: Path, styles: Sequence[Path], view: str = "") -> tuple[bytes, bytes]:
    """What stands before a page's data, and after it; data are elements, as `element` gives them.

    Args:
        title: of the page.
        entry: the module that begins; it and what it imports lie under `views`.
        styles: sheets, in their order.
        view: what is shown first, where the page has no address, as the words of one.

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
        f'<style>{style}</style></head>\n<body><div id="heedful" data-view="{html.escape(view)}">'
        "</div>\n"
    )
    end = f'<script type="module">{script}</script></body></html>\n'
    # a file's name may hold bytes that are no text
    return begin.encode("utf-8", "replace"), end.encode()


def element(name: str, data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Bytes as an element of a page, deflated by a strategy of zlib's, in base64.

    >>> element("numbers", b"").startswith(b'<script type="application/octet-stream" id="numbers">')
    True
    """
    deflate = zlib.compressobj(strategy=strategy)
    text = base64.b64encode(deflate.compress(data) + deflate.flush())
    return f'<script type="application/octet-stream" id="{name}">'.encode() + text + b"</script>\n"
