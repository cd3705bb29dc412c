"""The page is accessible by screen reader and keyboard: axe-core finds no violation."""

import pytest
from page_reader import faults

WIDE, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 844}


VIEWS = [
    ("served", "light", WIDE), ("served", "dark", WIDE), ("served", "light", PHONE),
    ("served", "dark", PHONE), ("file", "light", WIDE), ("file", "dark", PHONE),
]  # fmt: skip


@pytest.mark.parametrize(("host", "scheme", "size"), VIEWS)
def test_axe_finds_nothing_serious(opened, served, filed, host, scheme, size):
    address = served.address if host == "served" else filed
    view = opened(address, served.origin, viewport=size, color_scheme=scheme)
    page = view.page
    page.locator("[role=application], [role=listbox]").first.wait_for(state="attached")
    view.show(call="0.0.0", head=1, cell="9,4", pinned=1)
    page.wait_for_timeout(300)
    assert not faults(page)
    for button in ("scatter", "text"):
        for toggle in page.get_by_role("button", name=button, exact=True).all():
            if toggle.is_visible():
                toggle.click()
    page.wait_for_timeout(200)
    assert not faults(page)
    view.show(call="0.0.0", head=1, tab="segments", marks="begin:0-3;middle:2-7")
    page.get_by_role("region", name="Attention between segments").get_by_role("table").wait_for()
    assert not faults(page)
    page.get_by_role("button", name="Help").first.click()
    assert not faults(page)
