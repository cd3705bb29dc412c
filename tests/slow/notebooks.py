"""Notebooks as a person has them: a server of Jupyter, its pages, and what stands in them."""

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
READY = 60  # seconds that a server may take to start


class Server:
    """A server of Jupyter in a folder; `kind` is "lab", "notebook" or "nbclassic"."""

    def __init__(self, folder, kind="lab", **environment):
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        own = {f"JUPYTER_{name}_DIR": str(self.folder / name.lower())
               for name in ("CONFIG", "DATA", "RUNTIME")}  # fmt: skip
        given = {name: word for name, word in os.environ.items() if not name.startswith("VSCODE")}
        self._log = (self.folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", kind, "--no-browser", "--allow-root",
             "--ip=127.0.0.1", f"--port={self.port}", f"--IdentityProvider.token={WORD}",
             f"--ServerApp.root_dir={self.folder}", "--ServerApp.open_browser=False",
             "--LabApp.news_url=None",
             "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"],
            cwd=self.folder, env=given | own | environment, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def __enter__(self):
        end = time.monotonic() + READY
        while True:
            try:
                urllib.request.urlopen(f"{self.address}/api?token={WORD}", timeout=2)
                return self
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    self.__exit__()
                    log = (self.folder / "server.log").read_text()
                    raise RuntimeError(f"Jupyter did not start:\n{log}") from None
                time.sleep(0.2)

    def __exit__(self, *error):
        self._process.terminate()
        try:
            self._process.wait(15)
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

    def read(self, name):
        """A notebook as it was saved."""
        return json.loads((self.folder / name).read_text("utf-8"))
