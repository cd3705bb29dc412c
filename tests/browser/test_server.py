"""The server under a page: asked by a hundred at once, asked for the absurd, and gone."""

import re

import numpy as np

from heedful.views.explorer.wire import unpacked

MANY = """
async ([call, count]) => Promise.all(Array.from({length: count}, async (_, i) => {
  const address = `/ask/row?call=${call}&heads=1&at=${i % 17}&n=${i}`;
  const response = await fetch(address);
  return [response.status, [...new Uint8Array(await response.arrayBuffer())]];
}))
"""


def test_a_hundred_questions_at_once_are_answered(explorer, places):
    where, call = places("causal")
    found = explorer.page.evaluate(MANY, [where, 100])
    assert [status for status, _ in found] == [200] * 100
    for i, (_, data) in enumerate(found):
        np.testing.assert_allclose(
            unpacked(bytes(data))[1]["weights"], call.weights(1)[i % 17], atol=1e-7
        )


def test_what_is_absurd_is_refused_in_a_line_and_the_page_goes_on(opened, served, places):
    page = opened(served.address, served.origin, allowed=["status of 4"])
    where, _ = places("long")
    asked = """async (asked) => { const found = await fetch(asked);
               return [found.status, await found.text()]; }"""
    for question in (
        f"/ask/part?call={where}&head=0&queries=0-1000000&keys=0-1000000",
        f"/ask/tile?call={where}&place=0,0,99,99",
        f"/ask/tile?call={where}&place=77,0,0,0",
        f"/ask/row?call={where}&heads=0&at=-1",
        "/ask/row?call=0.0.99&heads=0&at=1",
        "/ask/row?call=../../etc&heads=0&at=1",
        "/ask/cell?call=0.0.0&head=0&query=1",
        "/ask/everything",
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/..%2fserver.py",
    ):
        status, said = page.page.evaluate(asked, question)
        assert 400 <= status < 500, (question, status)
        assert len(said) < 300, (question, said)
        assert "Traceback" not in said
        assert "import" not in said
    page.cell("0.0.0", 1, 9, 4)


def test_a_server_that_went_away_is_said(opened, recordings):
    from browsed import Served

    with Served({"causal": recordings["causal"]}) as gone:
        page = opened(gone.address, gone.origin, allowed=["ERR_CONNECTION_REFUSED"])
        page.cell("0.0.0", 1, 9, 4)
    page.show(call="0.0.0", head=1, cell="10,2", pinned=1)
    page.page.get_by_text(re.compile("server.*(gone|ended|away|not answer)", re.I)).first.wait_for()


def test_a_first_weight_takes_few_requests(opened, served, places):
    """What is asked for before it stands there, over however slow a line."""
    where, _ = places("causal")
    page = opened(f"{served.origin}/x", served.origin, allowed=["403"])
    urls = []
    page.page.on("request", lambda request: urls.append(request.url.partition("?")[0]))
    page.page.goto(f"{served.address}#call={where}&head=1&cell=9,4&pinned=1")
    page.made(1, 9, 4)
    page.page.wait_for_timeout(500)
    files = [url for url in urls if "/ask/" not in url]
    assert len(files) <= 4, files  # the address with its word, the page, its script and its style
    assert len(urls) <= 20, urls
