"""The page and its server: the number of requests at the start, and a server that has ended."""

import re


def test_a_server_that_has_ended_is_reported(opened, recordings):
    from page_reader import Served

    with Served({"causal": recordings["causal"]}) as server:
        page = opened(server.address, server.origin, allowed=["ERR_CONNECTION_REFUSED"])
        page.cell("0.0.0", 1, 9, 4)
    page.show(call="0.0.0", head=1, cell="10,2", pinned=1)
    page.page.get_by_text(re.compile("server.*(gone|ended|away|not answer)", re.I)).first.wait_for()


def test_a_first_weight_takes_few_requests(opened, served, places):
    """The requests before the first weight is shown."""
    where, _ = places("causal")
    page = opened(f"{served.origin}/x", served.origin, allowed=["403", "404"])
    urls = []
    page.page.on("request", lambda request: urls.append(request.url.partition("?")[0]))
    page.page.goto(f"{served.address}#call={where}&head=1&cell=9,4&pinned=1")
    page.wait_for_weight(1, 9, 4)
    page.page.wait_for_timeout(500)
    files = [url for url in urls if "/ask/" not in url]
    assert len(files) <= 4, files  # the page, its script, its style, and the session
    assert len(urls) <= 20, urls
