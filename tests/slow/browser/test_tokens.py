"""Tokens are shown as text: any script, invisible characters, ten thousand characters, HTML."""

import re

import pytest
from small_recordings import EVIL, STRANGE


@pytest.fixture(params=["served", "file"])
def page(request, opened, served, filed):
    """The page, served and as one file."""
    if request.param == "served":
        return opened(served.address, served.origin)
    return opened(filed, "file://", offline=True)


def test_tokens_of_any_kind_are_text_everywhere(page, places):
    where, call = places(EVIL)
    assert call.key_tokens == STRANGE
    head = call.heads[0]
    last = len(STRANGE) - 1
    for key in (0, 4, 6, 11, 16, 18, 21):
        page.cell(where, head, last, key)
    page.cell(where, head, last, 0)
    page.soon(lambda: check_named(page, EVIL.replace(" ", "·")))
    page.cell(where, head, last, 18)
    page.soon(lambda: check_named(page, "10,000"))
    for name in ("text", "lines", "scatter"):
        for button in page.page.get_by_role("button", name=name, exact=True).all():
            if button.is_visible():
                button.click()
    page.page.get_by_role("searchbox").fill("onerror")
    page.page.get_by_role("searchbox").press("Enter")
    page.page.get_by_text(re.compile("1 of 1")).first.wait_for()
    assert page.page.locator("img, script[src*=alert], b:has-text('bold')").count() == 0
    assert page.page.title()
    path, _ = page.downloaded("SVG")
    assert "<img" not in path.read_text("utf-8")
    width = page.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert width <= 0  # ten thousand characters do not widen the page


def check_named(page, text):
    assert text in page.region.inner_text()
