"""A page as one file that opens anywhere, with no network: modules and style inside.

Browsers refuse modules that come from files, so the modules are linked to Blobs in the order of
their imports. The policy of the page names its one script by a hash, and no host at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

VIEWS = Path(__file__).parent  # modules are named by their paths from here
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"(\.{1,2}/[^"]+)"')

LOADER = """
const bytes = (id) => {
  const text = atob(document.getElementById(id).textContent);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
};
const stream = new Blob([bytes("modules")]).stream();
new Response(stream.pipeThrough(new DecompressionStream("deflate"))).text().then((text) => {
  const urls = {};
  for (const [name, source] of JSON.parse(text)) {
    const imports = /(\\bfrom\\s*|\\bimport\\s*)"(\\.{1,2}\\/[^"]+)"/g;
    const linked = source.replace(imports, (_, how, path) => {
      return how + '"' + urls[new URL(path, "file:///" + name).pathname.slice(1)] + '"';
    });
    urls[name] = URL.createObjectURL(new Blob([linked], { type: "text/javascript" }));
  }
  import(urls["%s"]);
});
"""


def shell(title: str, entry: Path, styles: Sequence[Path]) -> tuple[bytes, bytes]:
    """What stands before a page's data, and after it; data are elements, as `element` gives them.

    Args:
        title: of the page.
        entry: the module that begins; it and what it imports lie under this folder.
        styles: sheets, in their order.

    >>> begin, end = shell("a <page>", VIEWS / "explorer" / "page" / "html.js", [])
    >>> b"<title>a &lt;page&gt;</title>" in begin, end.endswith(b"</html>\\n")
    (True, True)
    """
    script = LOADER % _name(entry)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; worker-src blob:; "
        "style-src 'unsafe-inline'; img-src blob: data:; connect-src 'none'; base-uri 'none'; "
        "form-action 'none'"
    )
    style = "".join(sheet.read_text("utf-8") for sheet in styles)
    begin = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f'<style>{style}</style></head>\n<body><div id="heedful"></div>\n'
    )
    # a file's name may hold bytes that are no text
    data = element("modules", json.dumps(linked(entry)).encode())
    end = f"<script>{script}</script></body></html>\n"
    return begin.encode("utf-8", "replace") + data, end.encode()


def element(name: str, data: bytes, level: int = 6) -> bytes:
    """Bytes as an element of a page, deflated, in base64.

    >>> element("numbers", b"").startswith(b'<script type="application/octet-stream" id="numbers">')
    True
    """
    text = base64.b64encode(zlib.compress(data, level))
    return f'<script type="application/octet-stream" id="{name}">'.encode() + text + b"</script>\n"


def _name(module: Path) -> str:
    return module.resolve().relative_to(VIEWS.resolve()).as_posix()


def linked(entry: Path) -> list[tuple[str, str]]:
    """Each module's name and source, after those that it imports."""
    found: dict[str, str] = {}

    def add(module: Path) -> None:
        name = _name(module)
        if name in found:
            return
        source = module.read_text("utf-8")
        for _, path in IMPORT.findall(source):
            add(module.parent / path)
        found[name] = source

    add(entry)
    return list(found.items())
