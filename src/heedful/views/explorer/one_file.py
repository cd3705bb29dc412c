"""The page as one file that opens anywhere, with no network: modules, style and numbers inside.

What is in it: of every head a pooled map, and the largest weights of every row while they fit, else
of evenly chosen rows; the page says which. Modules from files are refused by browsers, so they are
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.files import replacing
from heedful.recorder import Call
from heedful.recorder.kept.head_types import evidence
from heedful.views.explorer.answers import Answers
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import packed

PAGE = Path(__file__).parent / "page"
ENTRY = "filed.js"
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"(\.{1,2}/[^"]+)"')
BYTES = 14_000_000  # of numbers before they are written as text, which adds a third
TOP = 8

LOADER = """
const parts = JSON.parse(document.getElementById("modules").textContent);
const urls = {};
for (const [name, source] of parts) {
  const imports = /(\\bfrom\\s*|\\bimport\\s*)"(\\.{1,2}\\/[^"]+)"/g;
  const linked = source.replace(imports, (_, how, path) => {
    const folder = name.includes("/") ? name.slice(0, name.lastIndexOf("/") + 1) : "";
    return how + '"' + urls[new URL(path, "file:///" + folder).pathname.slice(1)] + '"';
  });
  urls[name] = URL.createObjectURL(new Blob([linked], { type: "text/javascript" }));
}
import(urls["%s"]);
"""


def page(recordings: Texts, title: str, progress: Callable[[float], None] | None = None) -> str:
    """The whole page as text.

    Args:
        recordings: what it shows.
        title: of the page.
        progress: is told of the share that is done, 0 to 1.
    """
    script = LOADER % ENTRY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; style-src 'unsafe-inline'; "
        "img-src blob: data:; base-uri 'none'; form-action 'none'"
    )
    numbers = _numbers(recordings, progress or (lambda share: None))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_style()}"
        '</style></head>\n<body><div id="heedful"></div>\n'
        f'<script type="application/json" id="modules">{_in_script(_modules())}</script>\n'
        f'<script type="application/octet-stream" id="numbers">{numbers}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def write(path: Path, recordings: Texts, title: str, progress: Any = None) -> int:
    """Write the page to a file, whole or not at all; its bytes."""
    data = page(recordings, title, progress).encode()
    with replacing(path) as part:
        part.write_bytes(data)
    return len(data)


def _in_script(value: Any) -> str:
    """JSON inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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


def _numbers(recordings: Texts, progress: Callable[[float], None]) -> str:
    """All answers that the file has, deflated, in base64."""
    answers = Answers(recordings)
    about = recordings.about()
    places = [
        (r, t, c)
        for r, recording in enumerate(about)
        for t, text in enumerate(recording["texts"])
        for c in range(len(text["calls"]))
    ]
    room = BYTES // max(1, len(places))
    kept = {"about": answers.about()}
    for done, where in enumerate(places):
        call = recordings.call(*where)
        name = ".".join(map(str, where))
        kept[f"call {name}"] = _of_call(call, room)
        kept[f"tokens {name}"] = _tokens(call)
        progress((done + 1) / len(places))
    head = {name: len(data) for name, data in kept.items()}
    whole = packed({"parts": head}) + b"".join(kept.values())
    return base64.b64encode(zlib.compress(whole, 6)).decode()


def _of_call(call: Call, room: int) -> bytes:
    """What the file knows of a call: (H, r, c) pooled maps, NaN where hidden, and largest weights.

    Cells are of 2ⁿ × 2ⁿ weights. Where a cell is one weight everything is there.
    """
    H, N, M = call.shape
    cell = 1
    while cell < max(N, M) and H * -(-N // cell) * -(-M // cell) * 2 > room // 2:
        cell *= 2
    maps = torch.stack([_map(call, head, cell) for head in call.heads])
    exact = cell == 1 and maps.numel() * 4 <= room
    found = {"maps": maps if exact else maps.half()}
    if cell > 1:
        step = max(1, -(-H * N * TOP * 6 // max(1, room // 2)))
        rows = torch.arange(0, N, step)
        found["rows"] = rows
        found["weights"], found["keys"] = _strongest(call, rows)
    scores = evidence(call)
    found |= {f"score {name}": of.mean for name, of in scores.items()}
    return packed({"cell": cell, "half": not exact}, **found)


def _map(call: Call, head: int, cell: int) -> Tensor:
    found = call.pooled((cell, cell), head, reduce="max")
    return found.masked_fill(call.hidden_cells((cell, cell), head), torch.nan)


def _strongest(call: Call, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The largest weights of some rows, (H, n, k), and their keys."""
    count = min(TOP, call.shape[2])
    if len(rows) == call.shape[1]:
        return call.top(count)
    found = [call.weights(queries=some.tolist()).topk(count) for some in rows.split(64)]
    weights, keys = (torch.cat([part[i] for part in found], dim=1) for i in (0, 1))
    return weights, keys


def _tokens(call: Call) -> bytes:
    return packed({"queries": call.query_tokens, "keys": call.key_tokens})
