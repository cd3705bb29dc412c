"""Jupyter in a browser: a server, a notebook, and the explorer's pages in its cells."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat

TOKEN = "of-the-tests"  # the server's access token
READY = 90  # seconds that a server may take to start
KINDS = {"lab": "lab/tree", "notebook": "notebooks", "nbclassic": "nbclassic/notebooks"}


class Server:
    """A Jupyter server in a folder; `kind` is a key of `KINDS`."""

    def __init__(self, folder, kind="lab"):
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        folders = {f"JUPYTER_{name}_DIR": str(self.folder / name.lower())
               for name in ("CONFIG", "DATA", "RUNTIME")}  # fmt: skip
        others = {name: word for name, word in os.environ.items() if not name.startswith("VSCODE")}
        settings = self.folder / "config" / "labconfig" / "page_config.json"  # no news dialog
        settings.parent.mkdir(parents=True)
        news = {"@jupyterlab/apputils-extension:announcements": True}
        settings.write_text(json.dumps({"disabledExtensions": news}))
        self._log = (self.folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", kind, "--no-browser", "--allow-root",
             "--ip=127.0.0.1", f"--port={self.port}", f"--IdentityProvider.token={TOKEN}",
             f"--ServerApp.root_dir={self.folder}"],
            cwd=self.folder, env=others | folders, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def start(self):
        """Wait until the server answers."""
        end = time.monotonic() + READY
        while True:
            try:
                urllib.request.urlopen(f"{self.address}/api?token={TOKEN}", timeout=2)
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    log = (self.folder / "server.log").read_text()
                    raise RuntimeError(f"Jupyter did not start:\n{log}") from None
                time.sleep(0.2)

    def end(self):
        """End the server and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def write(self, name, *cells):
        """Write a notebook of code cells without outputs."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(notebook, self.folder / name)


class Notebook:
    """The notebook a.ipynb with `count` cells in a browser."""

    def __init__(self, server, page, kind, count):
        self.server, self.page, self.kind = server, page, kind
        self.is_old = kind == "nbclassic"
        page.goto(f"{server.address}/{KINDS[kind]}/a.ipynb?token={TOKEN}")
        self.cells = page.locator(".code_cell" if self.is_old else ".jp-CodeCell")
        self.cells.nth(count - 1).wait_for(state="attached")
        if self.is_old:
            # without the widget manager, a widget is displayed as text; a kernel that has not sent
            # its information may skip a cell
            kernel = "window.Jupyter?.notebook?.kernel"
            page.wait_for_function(f"{kernel}?.widget_manager && {kernel}.info_reply?.status")
        else:
            # if the server starts slowly, a dialog may ask for the kernel
            dialog = page.locator(".jp-Dialog").filter(has_not_text="Restart Kernel?")
            page.add_locator_handler(dialog, self._accept)
            page.locator("[data-status=idle]").first.wait_for(state="attached")

    def _accept(self, dialog):
        print(f"a dialog of Jupyter: {dialog.inner_text()}")
        dialog.locator(".jp-mod-accept").click()

    def run(self, number):
        cell = self.cells.nth(number)
        prompt = cell.locator(".input_prompt, .jp-InputPrompt").first
        for _ in range(10):  # a kernel that is still starting may skip the cell
            cell.locator(".CodeMirror, .cm-content").first.click()
            self.page.keyboard.press("Control+Enter")
            self.page.wait_for_timeout(3000)
            if prompt.inner_text().strip(" \xa0In:") != "[ ]":
                return

    def cell(self, number):
        """Return the page in a cell's output."""
        return Page(self.cells.nth(number))

    def frame(self, number):
        """Return the page in an iframe in a cell's output."""
        return Page(self.cells.nth(number).frame_locator("iframe[srcdoc]").locator("body"))

    def restart(self):
        self.page.get_by_role("menuitem", name="Kernel").click()
        self.page.get_by_role("menuitem", name="Restart Kernel…").first.click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def scrolled(self):
        """Return how far the notebook is scrolled, in pixels."""
        return self.page.evaluate(
            "() => Math.max(...[...document.querySelectorAll('*')].map((node) => "
            "node.scrollHeight > node.clientHeight + 200 ? node.scrollTop : 0))"
        )

    def save(self, number):
        """Save the notebook, and wait until the file has the outputs of a cell."""
        self.cells.nth(0).locator(".cm-content").click()  # otherwise an iframe may receive the keys
        self.page.keyboard.press("Control+s")
        self.soon(lambda: self.saved(number))

    def saved(self, number):
        """Return the outputs of a cell in the file; none while the file is being written."""
        try:
            notebook = json.loads((self.server.folder / "a.ipynb").read_text("utf-8"))
        except json.JSONDecodeError:
            return []
        return notebook["cells"][number]["outputs"]

    def soon(self, check, seconds=20):
        """Wait until a check holds."""
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, f"the check fails after {seconds} s"
            self.page.wait_for_timeout(100)


class Page:
    """The explorer's page in a part of a notebook."""

    def __init__(self, part):
        self.part = part
        self.map = part.locator("canvas[role=application]").first

    def choose(self):
        """Select the cell in the middle of the map, or the one below the selected cell."""
        for _ in range(10):  # the notebook moves the focus to a cell that it has just run
            self.map.focus()
            self.map.page.wait_for_timeout(500)
            if self.map.evaluate("(map) => map.getRootNode().activeElement === map"):
                break
        self.map.press("ArrowDown")

    def weight(self):
        """Return the Python expression and the number of the displayed weight."""
        tab = self.part.locator(".tabs [data-tab=weight]")
        if tab.is_visible():  # only on narrow pages
            tab.click()
        region = self.part.get_by_role("region", name="This weight")
        region.get_by_text("weights(head=").wait_for()
        number = region.locator("[data-weight]").first.inner_text().split("\n")[0]
        return region.locator("code").inner_text(), number
