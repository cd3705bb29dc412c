"""The page as one file that opens anywhere, with no network: modules, style and numbers inside.

What is in it stands in `contents.py`. Modules from files are refused by browsers, so they are
linked to Blobs in the order of their imports; the policy of the page names the one script by its
hash, and no host at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from pathlib import Path

from heedful.files import replacing
from heedful.recorder.kept.progress import Tell
from heedful.views.explorer.contents import contents, places
from heedful.views.explorer.texts import Texts

PAGE = Path(__file__).parent / "page"
ENTRY = "filed.js"
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"(\.{1,2}/[^"]+)"')
# Bytes of a file: as many as GPT-2's 144 heads need at 512 tokens, in proportion to the rows of
# larger ones, and never more than the last
LEAST, ROWS, MOST = 5_000_000, 12 * 12 * 512, 20_000_000

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
      const folder = name.includes("/") ? name.slice(0, name.lastIndexOf("/") + 1) : "";
      return how + '"' + urls[new URL(path, "file:///" + folder).pathname.slice(1)] + '"';
    });
    urls[name] = URL.createObjectURL(new Blob([linked], { type: "text/javascript" }));
  }
  import(urls["%s"]);
});
"""


def write(path: Path, recordings: Texts, title: str, progress: Tell = lambda share: None) -> int:
    """Write the page to a file, whole or not at all; its bytes.

    Args:
        path: the file.
        recordings: what it shows.
        title: of the page.
        progress: is told of the share that is done, 0 to 1.
    """
    with replacing(path) as part:
        begin, end = _shell(title)
        around = len(begin) + len(end)
        numbers = contents(recordings, (_budget(recordings) - around) * 3 // 4, progress)
        part.write_bytes(begin + base64.b64encode(numbers) + end)
        return part.stat().st_size


def _budget(recordings: Texts) -> int:
    """How many bytes the file may have."""
    rows = sum(call.shape[0] * call.shape[1] for _, call in places(recordings))
    return min(MOST, max(LEAST, LEAST * rows // ROWS))


def _shell(title: str) -> tuple[bytes, bytes]:
    """What stands before the numbers, and after them."""
    script = LOADER % ENTRY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; worker-src blob:; "
        "style-src 'unsafe-inline'; img-src blob: data:; connect-src 'none'; base-uri 'none'; "
        "form-action 'none'"
    )
    modules = base64.b64encode(zlib.compress(json.dumps(_modules()).encode(), 9)).decode()
    begin = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f'<style>{_style()}</style></head>\n<body><div id="heedful"></div>\n'
        f'<script type="application/octet-stream" id="modules">{modules}</script>\n'
        '<script type="application/octet-stream" id="numbers">'
    )
    end = f"</script>\n<script>{script}</script></body></html>\n"
    # a file's name may hold bytes that are no text
    return begin.encode("utf-8", "replace"), end.encode()


def _style() -> str:
    """The style sheets of the page, in the order of its index."""
    names = re.findall(r'href="/page/(style/[^"]+)"', (PAGE / "index.html").read_text("utf-8"))
    return "".join((PAGE / name).read_text("utf-8") for name in names)


def _modules() -> list[tuple[str, str]]:
    """Each module's name and source, after those that it imports."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        if name in found:
            return
        source = (PAGE / name).read_text("utf-8")
        for _, path in IMPORT.findall(source):
            add(str(((PAGE / name).parent / path).resolve().relative_to(PAGE.resolve())))
        found[name] = source

    add(ENTRY)
    return list(found.items())
