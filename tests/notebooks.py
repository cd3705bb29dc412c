"""Notebooks as a person has them: a server of Jupyter, a notebook in a browser, and its pages."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat

WORD = "of-the-tests"  # that opens the server
READY = 90  # seconds that a server may take to start
KINDS = {"lab": "lab/tree", "notebook": "notebooks", "nbclassic": "nbclassic/notebooks"}


class Server:
    """A server of Jupyter in a folder; `kind` is one of `KINDS`."""

    def __init__(self, folder, kind="lab"):
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        own = {f"JUPYTER_{name}_DIR": str(self.folder / name.lower())
               for name in ("CONFIG", "DATA", "RUNTIME")}  # fmt: skip
        given = {name: word for name, word in os.environ.items() if not name.startswith("VSCODE")}
        quiet = self.folder / "config" / "labconfig" / "page_config.json"  # no question about news
        quiet.parent.mkdir(parents=True)
        news = {"@jupyterlab/apputils-extension:announcements": True}
        quiet.write_text(json.dumps({"disabledExtensions": news}))
        self._log = (self.folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", kind, "--no-browser", "--allow-root",
             "--ip=127.0.0.1", f"--port={self.port}", f"--IdentityProvider.token={WORD}",
             f"--ServerApp.root_dir={self.folder}"],
            cwd=self.folder, env=given | own, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def start(self):
        """Wait until it answers."""
        end = time.monotonic() + READY
        while True:
            try:
                urllib.request.urlopen(f"{self.address}/api?token={WORD}", timeout=2)
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    log = (self.folder / "server.log").read_text()
                    raise RuntimeError(f"Jupyter did not start:\n{log}") from None
                time.sleep(0.2)

    def end(self):
        """With its kernels."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def write(self, name, *cells):
        """A notebook with cells of code, not run."""
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(made, self.folder / name)


class Notebook:
    """The notebook a.ipynb in a browser, with so many cells."""

    def __init__(self, server, page, kind, count):
        self.server, self.page, self.kind = server, page, kind
        self.is_old = kind == "nbclassic"
        page.goto(f"{server.address}/{KINDS[kind]}/a.ipynb?token={WORD}")
        self.cells = page.locator(".code_cell" if self.is_old else ".jp-CodeCell")
        self.cells.nth(count - 1).wait_for(state="attached")
        if self.is_old:
            # what has no widgets yet shows their text, and a kernel that has not said what it is
            # may pass over a cell
            kernel = "window.Jupyter?.notebook?.kernel"
            page.wait_for_function(f"{kernel}?.widget_manager && {kernel}.info_reply?.status")
        else:
            # A server that is slow to begin asks at times which kernel to take, over the cells.
            asked = page.locator(".jp-Dialog").filter(has_not_text="Restart Kernel?")
            page.add_locator_handler(asked, self._accept)
            page.locator("[data-status=idle]").first.wait_for(state="attached")

    def _accept(self, dialog):
        print(f"a dialog of Jupyter: {dialog.inner_text()}")
        dialog.locator(".jp-mod-accept").click()

    def run(self, number):
        """Run a cell."""
        cell = self.cells.nth(number)
        prompt = cell.locator(".input_prompt, .jp-InputPrompt").first
        for _ in range(10):  # a kernel that is only beginning may pass over it
            cell.locator(".CodeMirror, .cm-content").first.click()
            self.page.keyboard.press("Control+Enter")
            self.page.wait_for_timeout(3000)
            if prompt.inner_text().strip(" \xa0In:") != "[ ]":
                return

    def cell(self, number):
        """The page in a cell."""
        return Shown(self.cells.nth(number))

    def frame(self, number):
        """The page in a frame in a cell."""
        return Shown(self.cells.nth(number).frame_locator("iframe[srcdoc]").locator("body"))

    def restart(self):
        """Restart the kernel."""
        self.page.get_by_role("menuitem", name="Kernel").click()
        self.page.get_by_role("menuitem", name="Restart Kernel…").first.click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def scrolled(self):
        """How far the notebook is scrolled, in pixels."""
        return self.page.evaluate(
            "() => Math.max(...[...document.querySelectorAll('*')].map((one) => "
            "one.scrollHeight > one.clientHeight + 200 ? one.scrollTop : 0))"
        )

    def save(self, number):
        """Save it, with the outputs of a cell."""
        self.cells.nth(0).locator(".cm-content").click()  # a frame keeps the keys to itself
        self.page.keyboard.press("Control+s")
        self.soon(lambda: self.saved(number))

    def saved(self, number):
        """The outputs of a cell in the file; none while the file is being written."""
        try:
            found = json.loads((self.server.folder / "a.ipynb").read_text("utf-8"))
        except json.JSONDecodeError:
            return []
        return found["cells"][number]["outputs"]

    def soon(self, check, seconds=20):
        """Wait until a check holds."""
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, "it did not become true"
            self.page.wait_for_timeout(100)


class Shown:
    """A page of the explorer in a part of a notebook."""

    def __init__(self, part):
        self.part = part
        self.map = part.locator("canvas[role=application]").first

    def choose(self):
        """Choose the cell in the middle of the map, or the one below what is chosen."""
        for _ in range(10):  # a notebook that has just run a cell takes the focus back to it
            self.map.focus()
            self.map.page.wait_for_timeout(500)
            if self.map.evaluate("(map) => map.getRootNode().activeElement === map"):
                break
        self.map.press("ArrowDown")

    def weight(self):
        """The weight that is shown: its Python, and its number."""
        tab = self.part.locator(".tabs [data-tab=weight]")
        if tab.is_visible():  # where the page is narrow
            tab.click()
        region = self.part.get_by_role("region", name="This weight")
        region.get_by_text("weights(head=").wait_for()
        shown = region.locator("[data-weight]").first.inner_text().split("\n")[0]
        return region.locator("code").inner_text(), shown
