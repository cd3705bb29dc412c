"""How the axes of a call are known: quietly beside its proof, and a warning where it is a guess."""

import html
import re

import pytest
from browsed import Served
from every_kind import padded

from heedful.recording import load
from heedful.recording.proof import Layout
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Texts

WHY = "its 3 heads may be 3 texts"


@pytest.fixture(scope="module")
def guessed(tmp_path_factory):
    """Two calls, of which the layout of one is guessed, as they come from a file."""
    made = padded()
    made._captures[1].layout = Layout("guessed", WHY)
    return load(made.save(tmp_path_factory.mktemp("guessed") / "r.safetensors"))


@pytest.fixture(params=["served", "file"])
def page(request, opened, guessed, tmp_path):
    """The page, as it is served and as a file."""
    if request.param == "file":
        path = tmp_path / "page.html"
        one_file.write(path, Texts({"one": guessed}), "one")
        yield opened(path.as_uri(), "file://", offline=True)
        return
    with Served({"one": guessed}) as explorer:
        yield opened(explorer.address, explorer.origin)


@pytest.mark.parametrize(("call", "word"), [("0.0.0", "told"), ("0.0.1", "guessed")])
def test_it_stands_above_beside_a_weight_and_in_a_saved_picture(call, word, page):
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
    quiet, colour = (page.page.locator(one).evaluate("one => getComputedStyle(one).color")
                     for one in ("header .proof", "header .layout"))  # fmt: skip
    assert (quiet == colour) == (not is_guess)
    path, _ = page.downloaded("SVG")
    said = html.unescape(" ".join(re.findall(r"<text[^>]*>(.*?)</text>", path.read_text("utf-8"))))
    warned = f"proved · warning: guessed layout: {WHY}"
    assert (warned if is_guess else "proved · layout told") in " ".join(said.split())
