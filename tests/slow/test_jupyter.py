"""A recording in JupyterLab, Jupyter Notebook and the classic notebook, without a network.

The page's numbers equal the library's, and the page reports a busy or ended kernel in one line.
"""

import re
from pathlib import Path

import pytest
from notebooks import KINDS, Notebook, Server
from page_reader import as_shown, is_own, pairs

import heedful

CELLS = (
    f"""import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import heedful
from small_recordings import of_gpt, padded
recording, other = of_gpt(), padded()
recording.save("recording.safetensors")
recording""",
    "other.sequences[1][1]",
    "heedful.look(recording, kernel=False)",
    "import time; time.sleep(8)",
    "import threading\n"
    "[thread.name for thread in threading.enumerate()].count('heedful-explorer'), 'threads'",
)
BUSY = "The kernel is busy. The page continues when the kernel answers."
ENDED = "The kernel was restarted or has ended: run the cell again to continue."


@pytest.fixture
def jupyter(browser, tmp_path):
    """Open a notebook of a kind; a request to another host fails the test."""
    requests, servers = [], []

    def open_(kind, *cells):
        server = Server(tmp_path, kind)
        servers.append(server)
        server.start()
        server.write("a.ipynb", *cells)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("request", lambda sent: outside(sent.url, server) and requests.append(sent.url))
        return Notebook(server, page, kind, len(cells))

    yield open_
    for server in servers:
        server.end()
    assert not requests, f"requests to other hosts: {requests}"


def outside(url, server):
    return not is_own(url, server.address) and not url.startswith(f"ws://127.0.0.1:{server.port}/")


def evaluated(code, recording):
    """Evaluate the expression that the page displays for a weight."""
    assert re.fullmatch(r"recording\[\d+\]\.weights\([^()]*\)", code)
    return float(eval(code, {"recording": recording}))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_keys_and_the_wheel_of_two_pages(jupyter, kind):
    notebook = jupyter(kind, *CELLS)
    notebook.run(0)
    first = notebook.cell(0)
    first.choose()
    recording = heedful.load(notebook.server.folder / "recording.safetensors")
    code, displayed = first.weight()
    assert as_shown(displayed, evaluated(code, recording)), (code, displayed)

    notebook.run(1)  # the page of a single call, of the second text
    second = notebook.cell(1)
    second.choose()
    first_weight = first.weight()
    code, displayed = second.weight()
    assert "recording.sequences[1][1].weights" in code
    for key in ("ArrowDown", "a", "x", "d", "d"):  # only this page receives them
        second.map.press(key)
    assert notebook.cells.count() == len(CELLS)
    assert second.weight() != (code, displayed)
    assert first.weight() == first_weight

    second.map.focus()
    first.map.hover()  # the wheel scrolls the notebook until the map has the focus
    top = notebook.scrolled()
    notebook.page.mouse.wheel(0, 100)
    notebook.soon(lambda: notebook.scrolled() > top)
    first.map.focus()
    top = notebook.scrolled()
    notebook.page.mouse.wheel(0, -100)
    notebook.soon(first.part.get_by_role("button", name="fit", exact=True).is_enabled)
    assert notebook.scrolled() == top


def test_a_page_in_a_frame_has_the_same_numbers(jupyter):
    notebook = jupyter("lab", CELLS[0] + ".recording_ref()", CELLS[2])
    notebook.run(0)
    notebook.run(1)
    frame = notebook.frame(1)
    frame.choose()
    recording = heedful.load(notebook.server.folder / "recording.safetensors")
    code, displayed = frame.weight()
    assert as_shown(displayed, evaluated(code, recording)), (code, displayed)
    numbers = dict(pairs(frame.part.get_by_role("region", name="This weight")))
    assert len(numbers) > 2
    notebook.save(1)
    assert len(notebook.saved(1)[0]["data"]["text/html"]) < 2_100_000


def test_a_busy_kernel_is_reported_and_a_new_page_ends_the_old_thread(jupyter):
    notebook = jupyter("nbclassic", *CELLS)
    notebook.run(0)
    cell = notebook.cell(0)
    cell.choose()
    code, _ = cell.weight()
    notebook.run(3)
    cell.map.press("ArrowDown")
    cell.part.get_by_text(BUSY).wait_for()
    cell.part.get_by_text(BUSY).wait_for(state="detached")
    notebook.soon(lambda: cell.weight()[0] != code)
    notebook.run(4)
    notebook.cells.nth(4).get_by_text("(1, 'threads')").wait_for()
    notebook.run(0)  # replaces the page, and ends its thread
    cell.map.wait_for()
    notebook.run(4)
    notebook.cells.nth(4).get_by_text("(1, 'threads')").wait_for()


def test_a_restart_is_reported_and_a_saved_notebook_has_a_table(jupyter):
    notebook = jupyter("lab", *CELLS)
    notebook.run(0)
    cell = notebook.cell(0)
    cell.map.wait_for()
    notebook.save(0)
    [output] = notebook.saved(0)
    assert {*output["data"]} == {
        "application/vnd.jupyter.widget-view+json", "text/html", "text/plain",
    }  # fmt: skip
    assert "blocks.0.attend" in "".join(output["data"]["text/html"])
    notebook.restart()
    cell.part.get_by_text(ENDED).wait_for()
    notebook.run(0)
    cell.part.get_by_text(ENDED).wait_for(state="detached")
    cell.map.wait_for()
