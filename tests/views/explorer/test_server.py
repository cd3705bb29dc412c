"""The server: access control, refused requests, and errors that affect no other request."""

import gc
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import small_recordings
from job_errors import RAISED
from page_reader import Served

from heedful.errors import TextError
from heedful.loaded import LoadedGPT
from heedful.models import GPT, GPTConfig
from heedful.recording import load
from heedful.views.explorer import server
from heedful.views.explorer.access import Guard
from heedful.views.explorer.generation import Generation
from heedful.views.explorer.handlers import ENDPOINTS
from heedful.views.explorer.server import BODY_LIMIT
from heedful.views.explorer.wire import unpacked

ROW = "/ask/row?call=0.0.0&heads=0&at=3"


class Model:
    """Records texts, and refuses an empty one."""

    directory, reads_pairs = Path("letters"), False

    def record(self, text, values):
        if not text:
            raise TextError("an empty text", remedy="write something")
        return small_recordings.of_gpt(text=text)


@contextmanager
def running(models=None, generation=lambda catalogue: None, recording=None):
    """Run an explorer of one recording on a free port; yield it and its port."""
    recordings = {"one": recording or small_recordings.of_gpt()}
    with Served(recordings, models, generation) as served:
        yield served.explorer, served.explorer.port


@pytest.fixture(scope="module")
def served():
    with running({"small": Model()}) as explorer:
        yield explorer


class Browser:
    """Sends requests as a page with the token does; `headers` replace its headers."""

    def __init__(self, explorer, port):
        self.port = port
        self.headers = {
            "Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {explorer.app.token}",
        }  # fmt: skip

    def request(self, path, method="GET", body=None, **headers):
        headers = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, values in headers.items():
            for value in values if isinstance(values, list) else [values]:
                if value is not None:
                    connection.putheader(name, value)
        if body is not None and not {"Content-Length", "Transfer-Encoding"} & set(headers):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        if body is not None:
            connection.send(body)
        response = connection.getresponse()
        result = response.status, response.read(), response.headers
        connection.close()
        return result

    def send(self, link, path):
        lines = [f"{name}: {value}" for name, value in self.headers.items()]
        link.sendall("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())

    def status(self, *arguments, **headers):
        status, text, _ = self.request(*arguments, **headers)
        if status >= 400:
            assert text.count(b"\n") == 0
            assert len(text) < 300
            assert b"Traceback" not in text
        return status


@pytest.fixture
def browser(served):
    return Browser(*served)


def test_an_address_opens_the_page_and_works_once(served, browser):
    explorer, port = served
    used = []
    address = explorer.new_address(lambda: used.append(1))
    origin, slash, query = address.partition("/?")
    assert origin == f"http://127.0.0.1:{port}"
    path, word = slash + query, query.removeprefix("word=")
    for headers in ({}, {"Sec_Fetch_Site": "cross-site"}):  # as from a file or a mail
        status, page, _ = browser.request(path, Authorization=None, **headers)
        assert status == 200
        assert b"<html" in page
    assert re.findall(rb'(?:src|href)="(/[^"]+)"', page) == [b"/page/page.css", b"/page/page.js"]
    for path, kind in (("/page/page.css", "text/css"), ("/page/page.js", "text/javascript")):
        status, _, headers = browser.request(path, Authorization=None)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
    assert browser.status("/session", Authorization=f"Bearer {word}") == 403  # a GET
    assert browser.status("/session", "POST", b"", Authorization="Bearer wrong") == 403
    assert browser.status(ROW, Authorization=f"Bearer {word}") == 403
    assert not used
    status, token, headers = browser.request("/session", "POST", Authorization=f"Bearer {word}")
    assert (status, used, headers["set-cookie"]) == (200, [1], None)
    assert browser.status(ROW, Authorization=f"Bearer {token.decode()}") == 200
    status, text, _ = browser.request("/session", "POST", Authorization=f"Bearer {word}")
    assert (status, used) == (403, [1])
    assert b"press Enter" in text


def test_an_unused_address_expires(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("heedful.views.explorer.access.time.monotonic", lambda: now[0])
    guard = Guard(None, 1, lifetime=60)
    words = [guard.new_word() for _ in range(3)]
    assert len(set(words)) == 3
    assert guard._use(words[2])
    now[0] = 59.0
    late = guard.new_word()
    assert guard._use(words[0])
    now[0] = 61.0
    assert not guard._use(words[1])
    assert guard._use(late)


PATHS = [(ROW, "GET"), ("/ask/about", "GET"), ("/nowhere", "GET"), ("/session", "GET"),
         ("/session", "POST"), ("/record", "POST")]  # fmt: skip


@pytest.mark.parametrize(("path", "method"), PATHS)
def test_requests_without_the_token_are_refused(browser, served, path, method):
    explorer, port = served
    token = explorer.app.token
    for value in (None, "", "Bearer", "Bearer ", "Bearer x", "Bearer ü", f"Basic {token}",
                  f"Bearer {token}x", f"Bearer {token[:-1]}"):  # fmt: skip
        assert browser.status(path, method, Authorization=value) == 403
    cookie = f"token={token}; heedful-{port}={token}"
    assert browser.status(f"{path}?word={token}", method, Authorization=None, Cookie=cookie) == 403


def test_other_hosts_and_origins_are_refused(browser, served):
    port = served[1]
    allowed = {"Host": f"localhost:{port}"}, {"Origin": f"http://127.0.0.1:{port}"}
    for headers in (*allowed, {"Sec_Fetch_Site": "same-origin"}):
        assert browser.status(ROW, **headers) == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}",
                 f"127.0.0.1:{port}.evil.example", f"0.0.0.0:{port}", ""):  # fmt: skip
        assert browser.status(ROW, Host=host) == 403, host
    for hosts in (None, [f"127.0.0.1:{port}", "evil.example"]):  # the protocol forbids it
        assert browser.status(ROW, Host=hosts) in (400, 403), hosts
    for origin in ("http://evil.example", f"http://127.0.0.1:{port + 1}", f"127.0.0.1:{port}",
                   f"https://127.0.0.1:{port}", "null", f"http://localhost:{port}"):  # fmt: skip
        assert browser.status(ROW, Origin=origin) == 403, origin
    for site in ("cross-site", "same-site"):
        assert browser.status(ROW, Sec_Fetch_Site=site) == 403


def test_every_response_has_the_policy(browser):
    paths = ("/", ROW, "/page/page.js", "/x")
    for path, changes in (*((path, {}) for path in paths), ("/", {"Host": ""})):
        _, _, headers = browser.request(path, **changes)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        fixed = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
                "cross-origin-resource-policy": "same-origin", "cache-control": "no-store",
                "access-control-allow-origin": None}  # fmt: skip
        assert {name: headers[name] for name in fixed} == fixed


OUTSIDE = ["../server.py", "%2e%2e/server.py", "..%2fserver.py", "/etc/passwd", "%00", ""]


def test_wrong_requests_have_a_status_and_no_path_leaves_the_pages_folder(browser):
    for path in OUTSIDE:
        status, text, _ = browser.request(f"/page/{path}")
        assert status in (400, 404)
        assert not re.search(b"import|root:", text)
    for path, status in (
        ("/ask/row", 400), ("/ask/row?call=0.0.0&heads=%00&at=0", 400), ("/ask/__class__", 404),
        ("/record", 405),
    ):  # fmt: skip
        assert browser.status(path) == status
    for method in ("PUT", "OPTIONS", "BREW"):
        assert browser.status(ROW, method) == 405
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    body = chunk * (BODY_LIMIT // 0x10000 + 2)
    assert browser.status("/record", "POST", body, Transfer_Encoding="chunked") == 413
    assert browser.status("/record", "POST", b"x" * (BODY_LIMIT + 1)) == 413
    assert browser.status(ROW) == 200


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_an_unexpected_error_is_one_line_and_affects_no_other_request(error, browser, monkeypatch):
    def broken(handlers, request):
        raise error

    monkeypatch.setitem(ENDPOINTS, "cell", broken)
    status, text, _ = browser.request("/ask/cell")
    assert (status, text) == (500, f"{type(error).__name__}: by zero".encode())
    assert browser.status(ROW) == 200


def test_a_text_is_recorded_and_a_wrong_text_refused(served, browser):
    status, data, _ = browser.request("/record", "POST", b'["a new   text"]')
    assert status == 200
    names = [recording["name"] for recording in unpacked(data)[0]["recordings"]]
    assert names[-1] == "a new text"
    assert browser.status(f"/ask/row?call={len(names) - 1}.0.0&heads=0&at=3") == 200
    status, text, _ = browser.request("/record", "POST", b'[""]')
    assert (status, text) == (400, b"an empty text; write something")
    for wrong in (b"", b"text", b"[1]", b"{}", b'["a", "b", "c"]', b"\xff", b"[" * 200_000):
        assert browser.status("/record", "POST", wrong) == 400, wrong
    evil = f"http://127.0.0.1:{served[1] + 1}"
    assert browser.status("/record", "POST", b"text", Origin=evil) == 403


def test_a_request_is_cancelled_if_the_browser_disconnects(served, browser, monkeypatch):
    started, go, calls = threading.Event(), threading.Event(), []

    monkeypatch.setitem(ENDPOINTS, "small", lambda *_: started.set() or (go.wait(10) and b""))
    monkeypatch.setitem(ENDPOINTS, "scores", lambda *_: calls.append(1) or b"")
    waiting = threading.Thread(target=browser.status, args=["/ask/small"])
    waiting.start()
    assert started.wait(10)
    explorer, port = served
    with socket.create_connection(("127.0.0.1", port)) as client:
        browser.send(client, "/ask/scores")
        while not explorer.worker._waiting:
            time.sleep(0.005)
        [(_, future)] = explorer.worker._waiting
    for _ in range(1000):
        if future.cancelled():
            break
        time.sleep(0.005)
    go.set()
    waiting.join(10)
    assert browser.status(ROW) == 200
    assert not calls


def test_the_end_of_the_server_closes_a_connection_that_is_not_read(monkeypatch):
    monkeypatch.setattr(server, "GRACE", 0.1)
    monkeypatch.setitem(ENDPOINTS, "small", lambda handlers, request: bytes(50_000_000))
    with running({"small": Model()}) as (explorer, port):
        link = socket.create_connection(("127.0.0.1", port), timeout=20)
        Browser(explorer, port).send(link, "/ask/small")
        assert link.recv(9)
    gc.collect()  # a connection that is still open gives a warning, which fails the test
    link.close()


def test_connections_without_a_complete_request_are_closed(monkeypatch):
    monkeypatch.setattr(server, "DEADLINE", 0.2)
    go = threading.Event()
    monkeypatch.setitem(ENDPOINTS, "small", lambda handlers, request: go.wait(20) and b"done")
    with running({"small": Model()}) as (explorer, port):
        client = Browser(explorer, port)
        answers = []
        slow = threading.Thread(target=lambda: answers.append(client.request("/ask/small")[:2]))
        slow.start()
        head = f"POST /record HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n"
        token = f"Authorization: Bearer {explorer.app.token}\r\n"
        for begin in ("", "GET", head, f"{head}\r\n", f'{head}{token}\r\n["a'):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
                link.sendall(begin.encode())
                while link.recv(4096):  # raises TimeoutError if the connection stays open
                    pass
        assert not answers
        go.set()  # a complete request waits for its response as long as this takes
        slow.join(20)
        assert answers == [(200, b"done")]


def test_generation(browser, tmp_path):
    """It needs the token and a model."""
    for path, method in (("/generation", "GET"), ("/generation/begin", "POST")):
        assert browser.status(path, method, b"{}" if method == "POST" else None) == 404
        assert browser.status(path, method, b"", Authorization=None) == 403

    def generation(catalogue):
        config = GPTConfig(**small_recordings.SHAPE, heads=3)
        loaded = LoadedGPT(GPT(config).eval(), small_recordings.LETTERS, Path("letters"))
        return Generation(loaded, catalogue, "a head")

    with running(generation=generation) as (explorer, port):
        client = Browser(explorer, port)
        assert unpacked(client.request("/ask/about")[1])[0]["written"]["wishes"]["tokens"] == 200
        assert unpacked(client.request("/generation")[1])[0]["tokens"] == 6
        assert len(unpacked(client.request("/generation?at=6")[1])[0]["ids"]) == 10
        body = b'{"prompt": "a head", "tokens": 4, "seed": 7}'
        assert unpacked(client.request("/generation/begin", "POST", body)[1])[0]["recording"] == 1
        while (status := unpacked(client.request("/generation")[1])[0])["runs"]:
            pass
        assert (status["tokens"], status["seed"]) == (10, 7)
        _, row = unpacked(client.request("/ask/row?call=1.0.0.9&heads=0&at=8")[1])
        assert row["weights"].shape == (9,)
        path = tmp_path / "text.safetensors"
        path.write_bytes(client.request("/generation/file?call=1.0.0.10")[1])
        assert load(path)[1].shape == (3, 10, 10)
        for path in ("generation?at=5", "generation?at=-1", "generation/file?call=0.0.0.3",
                     "generation/file?call=1.0.0.11", "ask/row?call=1.0.0.11&heads=0&at=3",
                     "ask/row?call=1.0.0&heads=0&at=3"):  # fmt: skip
            assert client.status(f"/{path}") == 400, path
        assert client.status("/generation/begin", "POST", b"[" * 9999) == 400
        assert client.status("/generation/read", "POST", b"{}") == 404
        assert client.status("/record", "POST", b'["a text"]') == 404


SERVE = """
import sys, time
from heedful.views.explorer import handlers, server
from heedful.views.explorer.jobs import Job
from heedful.views.explorer.catalogue import Catalogue

class Endless(Job):
    def steps(self):
        while True:
            time.sleep(0.05)
            yield

def about(handlers, request):
    handlers.background.prioritize(Endless())
    return b""

handlers.ENDPOINTS["about"] = about
server.serve(Catalogue({}), lambda new_address: print(new_address(), flush=True))
"""


def test_ctrl_c_ends_the_server_during_a_job():
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    ) as process:  # fmt: skip
        origin, _, word = process.stdout.readline().strip().partition("?word=")

        def requested(path, proof, method="GET"):
            headers = {"Authorization": f"Bearer {proof}"}
            request = urllib.request.Request(origin + path, headers=headers, method=method)
            return urllib.request.urlopen(request, timeout=20).read()

        answer = requested("ask/about", requested("session", word, "POST").decode())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert answer == b""
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert "Fatal" not in errors
    assert "ERROR" not in errors


def test_a_truncated_recording_is_reported_and_the_server_continues(tmp_path):
    path = small_recordings.of_gpt().save(tmp_path / "r.safetensors")
    with running(recording=load(path)) as served:
        browser = Browser(*served)
        assert browser.status(ROW) == 200
        os.truncate(path, 5000)
        for request in (ROW, "/ask/small?call=0.0.0", "/ask/scores?call=0.0.1"):
            status, text, _ = browser.request(request)
            assert (status, b"r.safetensors was truncated" in text) == (400, True)
        assert browser.status("/ask/about") == 200


class SlowTokenizer:
    """A tokenizer that needs without end for some texts, as a pattern in its file may."""

    def __init__(self):
        self.end = threading.Event()

    def encode(self, text):
        if "aaa" in text:
            self.end.wait(60)
        return [0]


def test_a_text_that_is_not_tokenized_in_time_is_refused_and_delays_nothing(monkeypatch):
    monkeypatch.setattr("heedful.views.explorer.server.READ_LIMIT", 0.5)
    model = Model()
    model.tokenizer = SlowTokenizer()
    with running({"small": model}) as served:
        browser, answers = Browser(*served), []

        def post(text):
            answers.append(browser.request("/record", "POST", f'["{text}"]'.encode())[:2])

        stuck = threading.Thread(target=post, args=["aaa"])
        stuck.start()
        assert browser.request(ROW)[0] == 200  # the thread of `post` still waits
        assert not answers
        stuck.join()
        post("b")  # the thread that tokenizes is still busy
        model.tokenizer.end.set()
        assert [status for status, _ in answers] == [400, 400]
        assert all(b"tokenizing" in text for _, text in answers)
        time.sleep(0.1)
        assert browser.request("/record", "POST", b'["b"]')[0] == 200
