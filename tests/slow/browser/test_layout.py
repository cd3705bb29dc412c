"""The layout of a call, shown beside its proof, with a warning if it is guessed."""

import html
import re

import pytest
from page_reader import Served
from small_recordings import padded

from heedful.recording import load
from heedful.recording.proof import Layout
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue

WHY = "its 3 heads may be 3 texts"


@pytest.fixture(scope="module")
def guessed(tmp_path_factory):
    """Two calls loaded from a file, the second with a guessed layout."""
    recording = padded()
    recording._captures[1].layout = Layout("guessed", WHY)
    return load(recording.save(tmp_path_factory.mktemp("guessed") / "r.safetensors"))


@pytest.fixture(params=["served", "file"])
def page(request, opened, guessed, tmp_path):
    """The page, served and as one file."""
    if request.param == "file":
        path = tmp_path / "page.html"
        one_file.write(path, Catalogue({"guessed": guessed}), "a file")
        yield opened(path.as_uri(), "file://", offline=True)
        return
    with Served({"guessed": guessed}) as explorer:
        yield opened(explorer.address, explorer.origin)


@pytest.mark.parametrize(("call", "word"), [("0.0.0", "told"), ("0.0.1", "guessed")])
def test_the_layout_is_in_the_toolbar_at_the_weight_and_in_a_saved_svg(call, word, page):
    page.cell(call, 1, 3, 2)
    is_guess = word == "guessed"
    head = page.page.locator("header .layout")
    assert head.inner_text() == f"layout {word}"
    assert f"proved, layout {word}" in page.region.inner_text()
    assert (WHY in page.region.inner_text()) == is_guess
    head.get_by_role("button").click()
    tip = page.page.get_by_role("tooltip").inner_text()
    assert (WHY in tip) == is_guess
    assert ("guess" in tip) == is_guess
    quiet, colour = (page.page.locator(part).evaluate("part => getComputedStyle(part).color")
                     for part in ("header .proof", "header .layout"))  # fmt: skip
    assert (quiet == colour) == (not is_guess)
    path, _ = page.downloaded("SVG")
    text = html.unescape(" ".join(re.findall(r"<text[^>]*>(.*?)</text>", path.read_text("utf-8"))))
    warned = f"proved · warning: guessed layout: {WHY}"
    assert (warned if is_guess else "proved · layout told") in " ".join(text.split())
