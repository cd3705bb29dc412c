"""A head whose last query is NaN, in the page of a server and in a one-file page."""

import io

import numpy as np
import pytest
import torch
from page_reader import Served
from PIL import Image
from torch import nn
from torch.nn import functional as F

import heedful
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue

N, HEAD = 12, 1
PINK = {"light": (208, 48, 140), "dark": (255, 111, 184)}


class Attention(nn.Module):
    """Causal attention of three heads; the last query of one head is NaN."""

    def forward(self, ids):
        generator = torch.Generator().manual_seed(5)
        query, key, value = torch.randn(3, 1, 3, N, 4, generator=generator)
        query[0, HEAD, -1] = torch.nan
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@pytest.fixture(params=["server", "32", "15"])
def page(request, opened, tmp_path, monkeypatch):
    model = Attention()
    with heedful.record(model) as recording:
        model(torch.arange(N)[None])
    if request.param == "server":
        with Served({"broken": recording}) as explorer:
            yield opened(explorer.address, explorer.origin)
        return
    monkeypatch.setattr(one_file, "_bits", lambda *arguments: int(request.param))
    path = tmp_path / "page.html"
    one_file.write(path, Catalogue({"broken": recording}), "a file")
    yield opened(path.as_uri(), "file://", offline=True)


def check(is_so):
    assert is_so


def test_weights_that_are_not_numbers_have_their_own_words_and_colour(page):
    page.cell("0.0.0", HEAD, N - 1, 3)
    assert page.weight == "not a number"
    text = page.region.inner_text()
    assert "in its row" not in text
    assert "not a number (NaN)" in text
    assert dict(page.steps())["query · key"] == "NaN"
    rows = page.table("query × key")
    assert all(row[1] == "NaN" and len(row[2].partition(".")[2]) >= 5 for row in rows)
    assert page.page.locator(".readout").inner_text().startswith("not a number")
    page.soon(lambda: check("not a number" in page.page.locator(".profile").inner_text()))
    page.soon(lambda: check("not a number" in page.page.locator(".legend").first.inner_text()))
    for scheme, colour in PINK.items():
        page.page.emulate_media(color_scheme=scheme)
        page.soon(lambda colour=colour: check(nearby(page, colour) > 1000))
    page.cell("0.0.0", HEAD, N - 2, 3)  # the row above is as in a sound head
    assert "in its row" in page.region.inner_text()
    page.show(call="0.0.0", head=0)
    page.soon(lambda: check("not a number" not in page.page.locator(".legend").first.inner_text()))


def nearby(page, colour):
    """The number of pixels of the map with about this colour."""
    image = page.page.get_by_role("application").first.screenshot()
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=int)
    return int((abs(pixels - colour).max(-1) < 24).sum())


def test_the_strongest_weights_are_numbers(page):
    page.show(call="0.0.0", head=HEAD)
    page.page.get_by_role("button", name="Strongest").click()
    amounts = page.page.locator(".strongest .amount")
    amounts.first.wait_for()
    assert float(amounts.first.inner_text()) == 1.0
