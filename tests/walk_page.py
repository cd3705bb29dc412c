"""Parts of a walk's page in a browser: the numbers of a matrix, the title, the selected number."""


def numbers(page, name):
    """The texts of a matrix's cells, with ASCII minus signs."""
    rows = page.get_by_role("table", name=name, exact=True).last.get_by_role("row")
    return [
        [text.replace("−", "-") for text in rows.nth(n).get_by_role("cell").all_inner_texts()]
        for n in range(rows.count())
    ]


def pane(page):
    return page.get_by_role("region", name="This number")


def title(page):
    return page.get_by_role("heading", level=1).locator("bdi").inner_text()


def is_rounded(text, number):
    if text in ("-∞", "−∞"):
        return number == -float("inf")
    decimals = len(text.partition(".")[2])
    return abs(float(text) - number) <= 0.5001 * 10**-decimals
