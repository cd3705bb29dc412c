"""The page and its server: the number of requests at the start, and a server that has ended."""

import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

from page_reader import Served

from heedful.cli.look import REDIRECT


def test_a_server_that_has_ended_is_reported(opened, recordings):
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


def test_an_address_works_once_and_the_session_in_all_tabs(opened, served, places):
    where, _ = places("causal")
    address = f"{served.address}#call={where}&head=1&cell=9,4&pinned=1"
    page = opened(address, served.origin)
    page.wait_for_weight(1, 9, 4)
    assert "word" not in page.page.url
    assert f"call={where}" in page.page.url
    page.page.reload()
    page.wait_for_weight(1, 9, 4)
    for again in (f"{served.origin}/#{address.partition('#')[2]}", address):
        tab = page.page.context.new_page()
        tab.goto(again)
        tab.get_by_role("region", name="This weight").get_by_text("weights(head=1").wait_for()
    assert not page.page.context.cookies()
    other = opened(address, served.origin, allowed=["403"]).page
    other.get_by_text("press Enter in the terminal").wait_for()


def test_a_file_opens_the_page(opened, served, tmp_path):
    file = tmp_path / "heedful.html"
    file.write_text(REDIRECT.format(served.address))
    page = opened(file.as_uri(), served.origin).page
    page.get_by_role("region", name="Heads").wait_for()
    assert page.url.startswith(f"{served.origin}/")


def test_a_server_started_again_at_the_same_port_needs_a_new_address(opened, recordings):
    with Served({"causal": recordings["causal"]}) as server:
        page = opened(server.address, server.origin, allowed=["403", "ERR_CONNECTION"]).page
        page.get_by_role("region", name="Heads").wait_for()
        server.explorer.app.token = "of the new start"
        page.reload()
        page.get_by_text("press Enter in the terminal").wait_for()
        page.goto(server.address)
        page.get_by_role("region", name="Heads").wait_for()


def test_a_server_at_another_port_gets_no_secret(opened, served):
    requests = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    page = opened(served.address, served.origin).page
    page.get_by_role("region", name="Heads").wait_for()
    with socketserver.TCPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page.context.new_page().goto(f"http://127.0.0.1:{other.server_address[1]}/")
        other.shutdown()
    assert requests
    assert not any(served.explorer.app.token in request for request in requests)
