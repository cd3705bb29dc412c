"""The page in a notebook cell, without a network. A stand-in for anywidget's model passes
its messages to the kernel side, which runs in this process."""

import base64
import threading

import pytest
from page_reader import as_shown
from small_recordings import of_gpt, padded

from heedful.views.notebook.display import frame
from heedful.views.notebook.kernel_side import KernelHandler, texts_and_view
from heedful.views.notebook.widget import Page as Widget

# A page like JupyterLab's, with a policy that allows scripts from Blobs, as anywidget needs
PAGE = """<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src 'none';
script-src blob: 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<body data-jp-theme-light="false"><div id="first"></div><div id="second"></div>"""
SHOW = """async ([esm, name, view]) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const listeners = {}, state = { view };
  const tell = (event, ...given) => (listeners[event] ?? []).forEach((does) => does(...given));
  const model = {
    on: (event, does) => (listeners[event] ??= []).push(does),
    off: (event, does) => { listeners[event] = listeners[event].filter((f) => f !== does); },
    get: (word) => state[word],
    set: (word, value) => { state[word] = value; },
    save_changes() {},
    async send(message) {
      while (window.held) await new Promise((soon) => setTimeout(soon, 50));
      const answer = await kernel(name, message);
      if (answer) tell("msg:custom", answer[0], answer[1].map(bytes));
    },
  };
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const widget = (await import(url)).default;
  const el = document.getElementById(name);
  const end = await widget.render({ model, el });
  (window.cells ??= {})[name] = { end, tell, state, listeners };
}"""


class Kernel:
    """Answers the messages of models by their names."""

    def __init__(self, shown):
        self.heard, self.sent, self._came = [], {}, threading.Condition()
        self.cells = {name: KernelHandler(value, self._send) for name, value in shown.items()}

    def _send(self, message, buffers):
        with self._came:
            self.sent[message["answer"]] = message, buffers
            self._came.notify()

    def __call__(self, name, message):
        self.heard.append(message)
        number = message.get("ask")
        if message.get("question") == "segments":
            return None  # never answered
        self.cells[name].receive(message)
        if number is None:
            return None
        with self._came:
            self._came.wait_for(lambda: number in self.sent, 20)
        answer, buffers = self.sent.pop(number)
        return answer, [base64.b64encode(bytes(buffer)).decode() for buffer in buffers]


@pytest.fixture
def cells(opened):
    """Two recordings in one notebook, each in its cell."""
    page = opened("about:blank", "about:", offline=True).page
    shown = {"first": of_gpt(), "second": padded().sequences[1]}
    kernel = Kernel(shown)
    page.expose_function("kernel", kernel)
    page.set_content(PAGE)
    for name, value in shown.items():
        page.evaluate(SHOW, [str(Widget._esm), name, texts_and_view(value)[1]])
    yield page, kernel, shown
    for answering in kernel.cells.values():
        answering.end()


def weight(cell):
    """The Python expression and the number of the displayed weight."""
    region = cell.get_by_role("region", name="This weight")
    region.get_by_text("weights(head=").wait_for()
    return region.locator("code").inner_text(), region.locator("[data-weight]").first.inner_text()


def test_two_pages_in_one_notebook(cells):
    page, kernel, shown = cells
    first, second = (page.locator(f"#{name}") for name in shown)
    code, text = weight(first)  # the example of the first visit
    true = eval(code, {"recording": shown["first"]})
    assert as_shown(text.split("\n")[0], float(true))
    assert code.startswith("recording[")
    second.locator("canvas[role=application]").press("ArrowDown")
    assert weight(second)[0].startswith("recording.sequences[1][0].weights(")
    assert weight(first) == (code, text)
    # the theme of the notebook, unless the user chose one
    ground = "page => getComputedStyle(page).getPropertyValue('--dark').trim()"
    inside = first.locator(".page")
    assert inside.evaluate(ground) == "1"
    page.evaluate("() => { document.body.dataset.jpThemeLight = 'true' }")
    first.locator(".page.light").wait_for()
    assert inside.evaluate(ground) == "0"
    # keys stay inside the page, except those with modifiers
    page.evaluate("() => { window.keys = []; onkeydown = (event) => keys.push(event.key) }")
    field = second.locator("canvas[role=application]")
    for key in ("d", "ArrowDown", "p", "Control+s"):
        field.press(key)
    assert page.evaluate("keys") == ["Control", "s"]
    # a busy kernel and one that has ended are reported; the page stays
    page.evaluate("() => { window.held = true }")
    field.press("ArrowUp")
    second.get_by_text("The kernel is busy").wait_for()
    page.evaluate("() => { window.held = false }")
    second.get_by_text("The kernel is busy").wait_for(state="detached")
    page.evaluate("() => cells.second.tell('comm_live_update')")
    second.get_by_text("run the cell again").wait_for()
    assert not first.get_by_text("run the cell again").count()
    # ending a page removes its elements, its listeners and its thread
    page.evaluate("() => cells.first.end()")
    assert not first.locator(".page").count()
    assert page.evaluate("Object.values(cells.first.listeners).flat().length") == 0
    page.wait_for_timeout(100)
    assert kernel.heard[-1]["open"] is False
    assert kernel.cells["first"]._worker is None
    assert kernel.cells["second"]._worker is not None
    assert "call=0.1.0" in page.evaluate("cells.second.state.view")
    # the same while the page waits for an answer; the kernel's thread must not start again
    kernel.heard.clear()
    page.evaluate(SHOW, [str(Widget._esm), "first", "call=0.0.0&pane=segments&marks=a:0-3"])
    while not any(message.get("question") == "scores" for message in kernel.heard):
        page.wait_for_timeout(50)
    assert any(message.get("question") == "segments" for message in kernel.heard)
    page.evaluate("() => cells.first.end()")
    page.wait_for_timeout(100)
    *_, last = (message for message in kernel.heard if "leave" not in message)
    assert last["open"] is False
    assert kernel.cells["first"]._worker is None


# The policy of VS Code for notebook cells: inline scripts, none from a Blob
STRICT = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:"
)


def test_a_page_in_a_frame_under_a_strict_policy(opened, monkeypatch):
    recording = of_gpt()
    page = opened("about:blank", "about:", offline=True).page
    head = f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{STRICT}"><body>'
    page.set_content(head + frame(recording[1]))
    cell = page.frame_locator("iframe").locator("body")
    assert cell.get_by_label("Layer").first.input_value() == "1"
    field = cell.locator("canvas[role=application]")
    field.press("ArrowDown")  # from the middle cell
    code, text = weight(cell)
    true = eval(code, {"recording": recording})
    assert as_shown(text.split("\n")[0], float(true))
    scrolled = cell.get_by_role("button", name="fit", exact=True)
    assert scrolled.is_disabled()
