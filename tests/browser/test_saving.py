"""Files that the page saves: maps as SVG, lines, tables, and the page itself."""

import csv
import io
import re
from xml.etree import ElementTree

import pytest
import torch
from page_reader import KINDS, as_shown

SVG = "{http://www.w3.org/2000/svg}"


def saved(page, button):
    """The text of the file that a button downloads."""
    with page.page.expect_download() as download:
        button.click()
    return download.value.path().read_text("utf-8")


def test_the_cells_of_an_svg_are_rectangles(explorer, places):
    where, call = places("causal")
    explorer.cell(where, 0, 5, 2)
    path, _ = explorer.downloaded("SVG")
    groups = ElementTree.fromstring(path.read_text("utf-8")).iter(f"{SVG}g")
    [cells] = [group for group in groups if group.get("shape-rendering") == "crispEdges"]
    seen = ~call.masked_cells((1, 1), 0)
    assert len(cells) == int(seen.sum())
    assert not list(cells.iter(f"{SVG}image"))


def test_a_csv_of_two_maps_has_both(explorer, places):
    where, call = places("causal")
    explorer.cell(where, 0, 5, 2, beside=f"{where}.2")
    path, _ = explorer.downloaded("CSV")
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8"))))
    starts = [n for n, row in enumerate(rows) if len(row) == 1]
    for start, head in zip(starts, (0, 2), strict=True):
        table = rows[start + 2 : start + 2 + call.shape[1]]
        shown = torch.tensor([[float(weight or 0) for weight in row[2:]] for row in table])
        torch.testing.assert_close(shown, call.weights(head), atol=1e-7, rtol=3e-6)
    explorer.page.get_by_role("button", name="Close the second map").click()


def test_lines_and_heads_are_saved(explorer, places):
    where, call = places("causal")
    explorer.cell(where, 0, 5, 2)
    text = explorer.page.get_by_role("region", name="The text")
    text.get_by_role("button", name="lines").click()
    button = text.get_by_role("button", name="save as SVG")
    button.wait_for()
    explorer.page.wait_for_timeout(300)
    picture = ElementTree.fromstring(saved(explorer, button))
    names = [word.text for word in picture.iter(f"{SVG}text")]
    assert names == [*call.query_tokens, *call.key_tokens]
    assert len(list(picture.iter(f"{SVG}path"))) - 1 == int((call.weights(0) >= 0.02).sum())
    text.get_by_role("button", name="text", exact=True).click()
    explorer.page.get_by_role("button", name="Heads in the middle of the page").click()
    with explorer.page.expect_download() as download:
        explorer.page.get_by_role("button", name="save as PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    explorer.page.get_by_role("button", name="Heads in the middle of the page").click()


def test_the_calculation_of_a_weight_as_csv(explorer, places):
    where, call = places(*KINDS["capped"])
    explorer.cell(where, 1, 6, 2)
    text = saved(explorer, explorer.region.get_by_role("button", name="save as CSV"))
    rows = list(csv.reader(io.StringIO(text)))
    products = [float(row[3]) for row in rows[1:] if row[0].isdigit()]
    at, shared = call.heads.index(1), call.shape[0] // len(call.causes.key)
    query = call.causes.query[at, 6].double()
    key = call.causes.key[at // shared, 2].double()
    torch.testing.assert_close(torch.tensor(products).double(), query * key, atol=1e-6, rtol=1e-5)
    results = {row[0]: float(row[1]) for row in rows[1:] if len(row) == 2}
    assert results["weight"] == pytest.approx(float(call.weights(1)[6, 2]), rel=1e-5)


def test_the_page_saves_itself_as_one_file(opened, explorer, places):
    where, call = places("causal")
    explorer.cell(where, 0, 5, 2)
    path, name = explorer.downloaded("Page")
    assert name == "heedful.html"
    copy = path.with_suffix(".html")
    copy.write_bytes(path.read_bytes())
    page = opened(copy.as_uri(), "file://", offline=True)
    page.wait_for_weight(0, 5, 2)
    assert as_shown(page.weight, float(call.weights(0)[5, 2]))


def test_a_link_says_where_it_works(explorer, places):
    explorer.show(call=places("causal")[0], head=0)
    explorer.page.get_by_role("button", name="Save", exact=True).click()
    explorer.page.get_by_role("button", name=re.compile("^Link ")).click()
    explorer.page.get_by_text("while heedful look runs").wait_for()
