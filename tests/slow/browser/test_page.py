"""Actions on the page by mouse and keyboard: select, zoom, pin, search, save, share."""

import csv
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from page_reader import as_shown
from PIL import Image

LINE = re.compile(r"weights\(head=(\d+), queries=\[(\d+)\], keys=\[(\d+)\]\)")


def chosen(page):
    """Head, query and key of the displayed weight, once it is loaded."""

    def read():
        match = LINE.search(page.region.inner_text())
        assert match
        return tuple(int(number) for number in match.groups())

    return page.soon(read)


def the_map(page):
    return page.page.get_by_role("application", name=re.compile("map of weights", re.I)).first


def click_cell(page, query, key, where=None):
    """Click the middle of a cell; return its pixel."""
    x, y = (where or middles(page))(key, query)
    page.page.mouse.click(x, y)
    page.soon(lambda: compare(chosen(page)[:0:-1], (key, query)))
    return x, y


def compare(actual, expected):
    assert actual == expected


def middles(page):
    """A function that returns the pixel of a cell's middle, fitted to clicks along a diagonal."""
    box = the_map(page).bounding_box()
    side = min(box["width"], box["height"])
    tried = np.array([[box["x"] + box["width"] / 2 + side * part,
                       box["y"] + box["height"] / 2 + side * part]
                      for part in np.linspace(-0.1, 0.3, 15)])  # fmt: skip
    cells = []
    for at in tried:
        page.page.mouse.click(*at)
        page.page.wait_for_timeout(300)
        cells.append(chosen(page)[:0:-1])
    fits = [np.polyfit(np.array(cells)[:, axis], tried[:, axis], 1) for axis in (0, 1)]
    return lambda key, query: [np.polyval(fits[0], key), np.polyval(fits[1], query)]


def in_view(page):
    """Queries, keys and weights of the saved CSV; 0 for masked cells."""
    path, _ = page.downloaded("CSV")
    first, *rows = csv.reader(io.StringIO(path.read_text("utf-8")))
    numbers = torch.tensor([[float(weight or 0) for weight in row[2:]] for row in rows])
    return [int(row[0]) for row in rows], [int(key.split()[0]) for key in first[2:]], numbers


def test_choosing_another_recording(explorer, places):
    for name, text in (("grouped", ""), ("cross", ""), ("padded", "text 2")):
        _, call = places(name, text)
        label = name if not text else f"{name} · {text}"
        options = explorer.page.get_by_role("combobox", name="Text")
        value = options.locator("option").filter(has_text=label).first.get_attribute("value")
        options.select_option(value)
        head = explorer.page.get_by_role("combobox", name="Head", exact=True).first
        assert head.input_value() == str(call.heads[0])
        queries, keys, numbers = explorer.soon(lambda: in_view(explorer))
        assert (len(queries), len(keys)) == call.shape[1:]
        torch.testing.assert_close(numbers, call.weights(call.heads[0]), atol=0, rtol=1e-6)


def test_a_click_pins_the_weight_of_its_cell(explorer, places):
    where, call = places("causal")
    explorer.cell(where, 1, 9, 4)
    query, key = 12, 7
    x, y = click_cell(explorer, query, key)
    assert as_shown(explorer.weight, float(call.weights(1)[query, key]))
    explorer.page.mouse.move(x - 80, y + 60, steps=4)
    explorer.page.wait_for_timeout(200)
    assert chosen(explorer) == (1, query, key)  # it is pinned
    explorer.page.keyboard.press("Escape")
    explorer.page.get_by_text("Point at a cell").first.wait_for()


def test_zoomed_to_single_cells_every_weight_is_exact(explorer, places):
    where, call = places("long")
    explorer.cell(where, 1, 900, 850)
    page = explorer.page
    page.get_by_text(re.compile(r"of \d+ × \d+")).first.wait_for()  # pooled
    the_map(explorer).focus()
    for _ in range(8):
        page.keyboard.press("+")
    page.get_by_text("every weight").first.wait_for()
    page.get_by_text(re.compile("exact")).first.wait_for()
    queries, keys, numbers = in_view(explorer)
    assert len(queries) < 80
    assert len(keys) < 80
    assert 900 in queries
    assert 850 in keys
    torch.testing.assert_close(numbers, call.weights(1, queries, keys), atol=0, rtol=1e-6)
    page.keyboard.press("0")
    page.get_by_text(re.compile(r"of \d+ × \d+")).first.wait_for()


def test_a_token_is_found(explorer, places):
    where, call = places("causal")
    explorer.cell(where, 0, 16, 0)
    places_of = [i for i, name in enumerate(call.key_tokens) if name == "o"]
    box = explorer.page.get_by_role("searchbox")
    box.fill("o")
    for n, key in enumerate([*places_of, places_of[0]]):
        box.press("Enter")
        explorer.soon(lambda key=key: check_key(explorer, key))
        number = n % len(places_of) + 1
        explorer.page.get_by_text(f"{number} of {len(places_of)}").first.wait_for()
    box.fill("zz")
    box.press("Enter")
    explorer.page.get_by_text("none", exact=True).first.wait_for()
    box.fill("")


def check_key(page, key):
    assert chosen(page)[2] == key


def test_a_png_has_the_colours_of_the_weights(explorer, places):
    name, call = places("causal")
    weights = call.weights(1)
    explorer.cell(name, 1, 9, 4, theme="light")
    cells = [(2, 1), (9, 2), (14, 7), (16, 12), (12, 5)]
    where = middles(explorer)
    spots = [click_cell(explorer, *cell, where) for cell in cells]
    path, name = explorer.downloaded("PNG")
    assert name.endswith(".png")
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L"), float)
        marked = (np.asarray(image.convert("RGB")) == [0xB3, 0x26, 0x1E]).all(-1)
    # the selected cell's token names are at the upper and the left edge, in the colour of the mark
    rows, columns = np.nonzero(marked)
    at = columns[rows < rows.min() + 8].mean(), rows[columns < columns.min() + 8].mean()
    drawn = [
        grey[int(at[1] + 2 * (y - spots[-1][1])), int(at[0] + 2 * (x - spots[-1][0]))]
        for x, y in spots[:-1]
    ]
    cells = cells[:-1]
    order = sorted(range(len(cells)), key=lambda n: float(weights[cells[n]]))
    assert drawn[order[0]] > drawn[order[-1]] + 40  # in the light theme, larger weights are darker
    assert [drawn[n] for n in order] == sorted(drawn, reverse=True)


def test_an_svg_has_its_tokens_as_text(explorer, places):
    where, call = places("cross", layer=2)
    explorer.cell(where, 1, 3, 4)
    path, name = explorer.downloaded("SVG")
    assert name.endswith(".svg")
    root = ET.fromstring(path.read_text("utf-8"))
    assert root.tag.endswith("svg")
    labels = ["".join(text.itertext()) for text in root.iter() if text.tag.endswith("text")]
    for names in (call.query_tokens, call.key_tokens):
        for at, token in enumerate(names):
            assert any(token in text for text in labels), token
            assert str(at) in labels


def test_the_address_restores_the_view(explorer, opened, served, places):
    where, _ = places("long")
    explorer.cell(where, 1, 700, 650, colours="log", reduce="mean")
    the_map(explorer).focus()
    for _ in range(8):
        explorer.page.keyboard.press("+")
    explorer.page.get_by_text("every weight").first.wait_for()
    explorer.page.wait_for_timeout(400)
    address = explorer.page.evaluate("location.hash")
    other = opened(served.address, served.origin)
    other.region.locator("[data-weight]").wait_for()  # the session is stored
    other.page.goto(f"{served.origin}/{address}")
    other.page.reload()
    other.wait_for_weight(1, 700, 650)
    other.page.get_by_text("every weight").first.wait_for()
    other.page.wait_for_timeout(300)
    assert in_view(other)[:2] == in_view(explorer)[:2]
    for page in (explorer, other):
        page.page.mouse.move(5, 400)
        the_map(page).focus()
    first, second = (
        np.asarray(Image.open(io.BytesIO(the_map(page).screenshot())).convert("L"), int)
        for page in (explorer, other)
    )
    assert (abs(first - second) > 16).mean() < 0.03  # except for the edges of cells


def ground(page):
    """The brightness of the page's corner, 0 to 255."""
    image = Image.open(io.BytesIO(page.page.screenshot())).convert("L")
    return image.getpixel((3, image.height - 3))


def test_light_and_dark_by_the_system_and_by_choice(opened, served):
    for scheme in ("light", "dark"):
        page = opened(served.address, served.origin, color_scheme=scheme)
        the_map(page).wait_for()
        assert (ground(page) > 200) == (scheme == "light")
        page.page.get_by_role("button", name="View", exact=True).click()
        page.page.get_by_role("button", name="dark" if scheme == "light" else "light").click()
        page.page.keyboard.press("Escape")
        page.page.wait_for_timeout(300)
        assert (ground(page) > 200) == (scheme == "dark")
        page.page.reload()
        the_map(page).wait_for()
        assert (ground(page) > 200) == (scheme == "dark")


def test_a_weight_is_reached_by_keyboard_alone(opened, served):
    page = opened(served.address, served.origin)
    the_map(page).wait_for()
    focused = "document.activeElement?.getAttribute('aria-label') ?? ''"
    for _ in range(60):
        page.page.keyboard.press("Tab")
        if "map of weights" in page.page.evaluate(focused).lower():
            break
    else:
        pytest.fail("the map cannot be reached by Tab")
    page.page.keyboard.press("ArrowDown")
    _, query, key = chosen(page)
    for name, step in (("ArrowDown", (1, 0)), ("ArrowLeft", (0, -1)), ("ArrowUp", (-1, 0))):
        page.page.keyboard.press(name)
        query, key = query + step[0], key + step[1]
        page.soon(lambda q=query, k=key: check_cell(page, q, k))
    call = served.texts.call(0, 0, 0)
    assert as_shown(page.weight, float(call.weights(call.heads[0])[query, key]))


def check_cell(page, query, key):
    assert chosen(page)[1:] == (query, key)


def test_the_strongest_weight_by_keyboard_stays_chosen(explorer, places):
    where, call = places("windowed")
    explorer.cell(where, 0, 9, 7)
    weights = call.weights(0)
    page = explorer.page
    page.keyboard.press("s")
    page.get_by_role("dialog", name="Strongest").get_by_role("button").first.wait_for()
    for n in (1, 2):
        page.keyboard.press("ArrowDown")
        query, key = divmod(int(weights.flatten().argsort(descending=True)[n]), weights.shape[1])
        page.keyboard.press("Enter")
        explorer.soon(lambda q=query, k=key: check_cell(explorer, q, k))
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Strongest").wait_for(state="hidden")
    check_cell(explorer, query, key)
