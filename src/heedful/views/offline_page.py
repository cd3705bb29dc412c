"""A page as one file that opens anywhere, with no network: modules and style inside.

Browsers refuse modules that come from files, so the modules are one script. The policy of the page
names it by a hash, and no host at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from collections.abc import Sequence
from pathlib import Path

from heedful.views.one_script import one_script


def shell(title: str, entry: Path, styles: Sequence[Path], view: str = "") -> tuple[bytes, bytes]:
    """What stands before a page's data, and after it; data are elements, as `element` gives them.

    Args:
        title: of the page.
        entry: the module that begins; it and what it imports lie under `views`.
        styles: sheets, in their order.
        view: what is shown first, where the page has no address, as the words of one.

    >>> from heedful.views.one_script import VIEWS
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
