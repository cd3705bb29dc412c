"""A file that has not every weight says of each number what it is; none is told as another."""

import re

import pytest
from browsed import as_shown, number

from heedful.views.explorer import one_file
from heedful.views.explorer.texts import Texts


@pytest.fixture
def without_causes(recordings, opened, tmp_path, monkeypatch):
    """The page of a long text as a file that has no queries and keys, and its call."""
    monkeypatch.setattr(one_file, "FEW", 0)
    path = tmp_path / "long.html"
    one_file.write(path, Texts({"long": recordings["long"]}), "long")
    return opened(path.as_uri(), "file://", offline=True), recordings["long"][0]


def test_a_weight_is_exact_or_bounded(without_causes):
    page, call = without_causes
    weights = call.weights(1)
    strong, weak = (weights[1200].topk(1200).indices[n] for n in (0, 1150))
    page.cell("0.0.0", 1, 1200, int(strong))
    assert as_shown(page.weight, float(weights[1200, strong])) or "≤" in page.weight
    page.cell("0.0.0", 1, 1200, int(weak))
    shown = page.weight
    true = float(weights[1200, weak])
    if "≤" in shown:
        assert number(shown.replace("≤", "")) >= true * (1 - 1e-3)
    else:
        assert as_shown(shown, true)
    told = page.page.locator("[data-told]")
    page.soon(lambda: check(re.search(f"key {int(weak)} .*: not in this file$", told.inner_text())))
    said = page.region.inner_text()
    assert re.search("at most|largest|half|all that this file has|exact", said)
    page.cell("0.0.0", 1, 300, 700)
    assert page.weight == "hidden"
    page.soon(lambda: check(told.inner_text().endswith(": hidden")))


def check(is_so):
    assert is_so


def test_the_map_says_what_its_colours_are(without_causes):
    page, _ = without_causes
    page.cell("0.0.0", 1, 1200, 900)
    words = page.page.get_by_role("status").filter(
        has_text=re.compile("file|at most|half|exact|largest")
    )
    words.first.wait_for()
    page.page.get_by_role("application").first.focus()
    for _ in range(8):
        page.page.keyboard.press("+")
    page.page.wait_for_timeout(300)
    words.first.wait_for()
