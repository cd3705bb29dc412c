"""The server of `heedful look` under load: other requests must be answered within a second.

    python benchmarks/server_load.py    # one minute

The server is `heedful look` on a tiny model in a separate process. While each load lasts, a probe
requests a row of a map every 20 ms, over a new connection each time. The figures are of the probe.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from explorer import Served
from timing import machine
from tiny_runs import recipe, trained, written_texts

from heedful.cli.main import run as run_command
from heedful.train.plan import new_plan
from heedful.train.run import begin
from heedful.views.explorer.server import DEADLINE

ROW = "/ask/row?call=0.0.0&heads=0&at=1"
LIMIT = 1.0  # seconds for every other request
HALF_OPEN, AT_ONCE = 200, 500
# cubic time on a run of the letter "a": minutes for 4,000 letters
HANGING = {
    "type": "Split",
    "pattern": {"Regex": r"a*a*(?!a)\w"},
    "behavior": "Isolated",
    "invert": False,
}
TEXT = "a" * 4000


def hanging_model(folder: Path) -> Path:
    """Write a tiny checkpoint whose tokenizer has a hanging pattern."""
    settings = recipe().changed({"text": {"tokenizer": "bpe", "vocabulary": 300}})
    run, exported = folder / "run", folder / "exported"
    trained(new_plan(run, [str(written_texts(folder)[0])], settings), begin)
    assert not run_command(["export", str(run), "--to", str(exported)])
    path = exported / "tokenizer.json"
    about = json.loads(path.read_text("utf-8"))
    steps = [HANGING, about["pre_tokenizer"]]
    about["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    path.write_text(json.dumps(about), "utf-8")
    return exported


class Probe(threading.Thread):
    """Sends a request every 20 ms, and stores the seconds until each response."""

    def __init__(self, server: Served) -> None:
        super().__init__(daemon=True)
        self.server, self.is_over = server, False
        self.seconds: list[float] = []

    def run(self) -> None:
        """Send requests until `is_over`."""
        while not self.is_over:
            began = time.perf_counter()
            assert b" 200 OK" in exchanged(self.server, f"GET {ROW}", b"")[:20]
            self.seconds.append(time.perf_counter() - began)
            time.sleep(0.02)


def request(server: Served, line: str, body: bytes) -> bytes:
    headers = {"Host": f"127.0.0.1:{server.port}", "Content-Length": len(body),
               "Connection": "close", **server.headers}  # fmt: skip
    lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def exchanged(server: Served, line: str, body: bytes) -> bytes:
    """Return the response to a request over a new connection."""
    with socket.create_connection(("127.0.0.1", server.port), 120) as link:
        link.sendall(request(server, line, body))
        parts = iter(lambda: link.recv(1 << 16), b"")
        return b"".join(parts)


@contextmanager
def probed(name: str, server: Served, worst: list[float]) -> Iterator[None]:
    """Probe the server in a context, and print the figures."""
    probe = Probe(server)
    probe.start()
    yield
    probe.is_over = True
    probe.join(120)
    seconds = sorted(probe.seconds)
    worst.append(seconds[-1])
    median = 1000 * seconds[len(seconds) // 2]
    print(f"{name:40} {len(seconds):6} {median:8.1f} ms {1000 * worst[-1]:8.1f} ms", flush=True)


def half_open(server: Served, begin: bytes) -> None:
    """Begin requests, and add a byte to each every half second until the server closes them."""
    links = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(HALF_OPEN)]
    for link in links:
        link.sendall(begin)
    began, closed = time.perf_counter(), set[socket.socket]()
    while (took := time.perf_counter() - began) < 2 * DEADLINE + 2 and len(closed) < len(links):
        time.sleep(0.5)
        for link in set(links) - closed:
            try:
                link.send(b"x")
            except OSError:
                closed.add(link)
    print(f"    {len(closed)} of {len(links)} were closed within {took:.0f} s")
    for link in links:
        link.close()


async def at_once(server: Served) -> None:
    """Send many requests at once."""

    async def one() -> tuple[float, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(server, f"GET {ROW}", b""))
        answer = await reader.read()
        writer.close()
        return time.perf_counter() - began, answer[9:12].decode()

    began = time.perf_counter()
    results = await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    last = max(seconds for seconds, _ in results)
    statuses = dict(Counter(status for _, status in results))
    print(f"    {AT_ONCE} requests, by status {statuses}, the last after {1000 * last:.0f} ms")


def hang(server: Served) -> None:
    began = time.perf_counter()
    answer = exchanged(server, "POST /record", json.dumps([TEXT]).encode())
    status, text = answer[9:12].decode(), answer.partition(b"\r\n\r\n")[2].decode()
    print(f"    the hanging text: {status} after {time.perf_counter() - began:.1f} s: {text}")


def main() -> None:
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}")
    print(f"{'load':40} {'probes':>6} {'median':>11} {'worst':>11}")
    worst: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = [str(hanging_model(folder)), "green bottles"]
        server = Served(*arguments)
        head = request(server, "POST /record", b"x" * 5000)
        loads: dict[str, Callable[[], object]] = {
            "none": lambda: time.sleep(2),
            f"{HALF_OPEN} incomplete headers": lambda: half_open(server, head[:40]),
            f"{HALF_OPEN} incomplete bodies": lambda: half_open(server, head[:-4000]),
            f"{AT_ONCE} requests at once": lambda: asyncio.run(at_once(server)),
            "a hanging pattern": lambda: hang(server),
        }
        for name, load in loads.items():
            with probed(name, server, worst):
                load()
        server.end()
    sys.exit(max(worst) > LIMIT)


if __name__ == "__main__":
    main()
