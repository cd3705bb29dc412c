"""Nothing of the page keeps out people with a screen reader or a keyboard: axe-core finds none."""

import pytest
from browsed import faults

WIDE, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 844}


SEEN = [
    ("served", "light", WIDE), ("served", "dark", WIDE), ("served", "light", PHONE),
    ("served", "dark", PHONE), ("file", "light", WIDE), ("file", "dark", PHONE),
]  # fmt: skip


@pytest.mark.parametrize(("host", "scheme", "size"), SEEN)
def test_axe_finds_nothing_serious(opened, served, filed, host, scheme, size):
    address = served.address if host == "served" else filed
    seen = opened(address, served.origin, viewport=size, color_scheme=scheme)
    page = seen.page
    # the map, or the heads: on a phone the first visit's cards turn to these
    page.locator("[role=application], [role=listbox]").first.wait_for(state="attached")
    seen.show(call="0.0.0", head=1, cell="9,4", pinned=1)
    page.wait_for_timeout(300)
    assert not faults(page)
    for button in ("scatter", "text"):
        for one in page.get_by_role("button", name=button, exact=True).all():
            if one.is_visible():
                one.click()
    page.wait_for_timeout(200)
    assert not faults(page)
    seen.show(call="0.0.0", head=1, tab="segments", marks="begin:0-3;middle:2-7")
    page.get_by_role("region", name="Who reads what").get_by_role("table").wait_for()
    assert not faults(page)
    page.get_by_role("button", name="Help").first.click()
    assert not faults(page)
