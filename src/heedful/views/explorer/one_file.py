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
from typing import BinaryIO, NamedTuple

from heedful.errors import HeedfulError, RunError
from heedful.files import replacing
from heedful.recorder import Call
from heedful.recorder.kept.progress import Tell
from heedful.views.explorer.answers import Where
from heedful.views.explorer.causes_in_file import SAMPLED, bytes_of, causes_as_data
from heedful.views.explorer.contents import CausesInFile, contents, places
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import packed

PAGE = Path(__file__).parent / "page"
ENTRY, WORKER = "filed.js", "causes.js"
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"(\.{1,2}/[^"]+)"')
# Bytes of a file: as many as GPT-2's 144 heads need at 512 tokens, in proportion to the rows of
# larger ones, and never more than the last
LEAST, ROWS, MOST = 5_000_000, 12 * 12 * 512, 20_000_000

LARGEST = 300_000_000  # bytes: a browser reads no text of half a gigabyte
FEW = 1_500_000  # bytes of queries and keys that are in every file
NUMBERS = b'<script type="application/octet-stream" id="numbers">'

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


class Written(NamedTuple):
    """What became of a file: its bytes, and in words what of the weights it has."""

    bytes: int
    said: str


def write(
    path: Path,
    recordings: Texts,
    title: str,
    progress: Tell = lambda share: None,
    *,
    exact: bool = False,
) -> Written:
    """Write the page to a file, whole or not at all.

    Args:
        path: the file.
        recordings: what it shows.
        title: of the page.
        progress: is told of the share that is done, 0 to 1.
        exact: with queries and keys in half precision, from which the page computes any weight.
            Where they are few, they are in it without being asked for, in single precision.

    Raises:
        RunError: more than a file can hold.
        SaveError: a place that cannot be written.
    """
    calls = places(recordings)
    check_size(recordings, exact=exact)
    few = sum(bytes_of(call, half=False) for _, call in calls) <= FEW
    with replacing(path) as part, part.open("wb") as file:
        begin, end = _shell(title)
        file.write(begin)
        causes = None
        if exact or few:
            causes = _write_causes(file, calls, exact and not few, lambda done: progress(done / 2))
        around = len(begin) + len(end) + len(NUMBERS) + (file.tell() if few else 0)
        ahead = 0.5 if causes else 0.0
        numbers, told = contents(
            recordings,
            (_budget(recordings) - around) * 3 // 4,
            lambda done: progress(ahead + (1 - ahead) * done),
            causes,
        )
        file.write(NUMBERS + base64.b64encode(numbers) + end)
        return Written(file.tell(), told)


def check_size(recordings: Texts, *, exact: bool) -> None:
    """Refuse, before anything is computed, what would be too large to open.

    Raises:
        RunError: it says how large.
    """
    about = sum(bytes_of(call, half=True) for _, call in places(recordings)) * 4 // 3
    if exact and about > LARGEST:
        raise RunError(
            f"queries and keys of some {about / 1e6:,.0f} MB",
            expected=f"at most {LARGEST / 1e6:,.0f} MB in one file",
            remedy="choose fewer with --layers and --heads, or leave --exact out",
        )


def _write_causes(
    file: BinaryIO, calls: list[tuple[Where, Call]], half: bool, progress: Tell
) -> CausesInFile:
    """Write an element for each call, and one for each array that calls share."""
    start, largest, rows = file.tell(), 0.0, 0
    known: dict[bytes, int] = {}

    def element(name: str, data: bytes) -> None:
        file.write(_element(name, data))

    element("worker", _worker().encode())
    for done, (where, call) in enumerate(calls):

        def tell(share: float, done: int = done) -> None:
            progress((done + share) / len(calls))

        try:
            head, arrays, shared, off = causes_as_data(call, half=half, progress=tell)
        except HeedfulError:  # what was not recorded truthfully; the page says so of its maps
            continue
        common = packed({}, **shared)
        digest = hashlib.blake2b(common).digest()
        if digest not in known:
            known[digest] = len(known)
            element(f"shared-{known[digest]}", common)
        data = packed({**head, "shared": known[digest]}, **arrays)
        element("causes-" + ".".join(map(str, where)), data)
        largest, rows = max(largest, off), rows + min(SAMPLED, call.shape[1]) * call.shape[0]
    return CausesInFile(half, file.tell() - start, largest, rows)


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
    begin = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f'<style>{_style()}</style></head>\n<body><div id="heedful"></div>\n'
    )
    end = f"</script>\n<script>{script}</script></body></html>\n"
    # a file's name may hold bytes that are no text
    modules = _element("modules", json.dumps(_modules(ENTRY)).encode())
    return begin.encode("utf-8", "replace") + modules, end.encode()


def _element(name: str, data: bytes) -> bytes:
    """Bytes, deflated, as an element that no browser runs."""
    text = base64.b64encode(zlib.compress(data, 6))
    return b'<script type="application/octet-stream" id="%s">%s</script>\n' % (name.encode(), text)


def _style() -> str:
    """The style sheets of the page, in the order of its index."""
    names = re.findall(r'href="/page/(style/[^"]+)"', (PAGE / "index.html").read_text("utf-8"))
    return "".join((PAGE / name).read_text("utf-8") for name in names)


def _worker() -> str:
    """The modules of the worker as one script: from a file, browsers start no worker of modules."""
    sources = (source for _, source in _modules(WORKER))
    return "\n".join(
        re.sub(r"^export ", "", re.sub(r"^import [^;]*;", "", source, flags=re.M), flags=re.M)
        for source in sources
    )


def _modules(entry: str) -> list[tuple[str, str]]:
    """Each module's name and source, after those that it imports."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        if name in found:
            return
        source = (PAGE / name).read_text("utf-8")
        for _, path in IMPORT.findall(source):
            add(str(((PAGE / name).parent / path).resolve().relative_to(PAGE.resolve())))
        found[name] = source

    add(entry)
    return list(found.items())
