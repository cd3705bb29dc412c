"""The socket of the server, and the limits of its connections."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time
from functools import cache
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.errors import RunError

HOST = "127.0.0.1"
DEADLINE = 10.0  # seconds for the headers of a request, and for its body
RETRY = 0.01  # seconds between two attempts to accept a connection


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, which also closes connections without a complete request in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the checks."""
        super().connection_made(transport)
        self.loop.call_later(DEADLINE, self._check, self.cycle)

    def _check(self, previous: Any) -> None:
        """Close the connection if its request, or the wait for one, began before the last check."""
        if self.cycle is previous and self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(DEADLINE, self._check, self.cycle)


class Listener(socket.socket):
    """A socket whose new connections wait while this process has no file left to open.

    asyncio alone would log thousands of tracebacks per second.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, or raise the error that means: later."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            _report_open_files()
            time.sleep(RETRY)
            raise BlockingIOError from error


@cache
def _report_open_files() -> None:
    print("heedful: new connections wait, because this process has as many open files as it may "
          "have; raise the limit with ulimit -n", file=sys.stderr)  # fmt: skip


def listening(port: int) -> Listener:
    """Return a socket that listens at a port, for connections from this machine only.

    Raises:
        RunError: a port that cannot be opened, for example because it is in use.
    """
    # without an explicit IPPROTO_TCP, asyncio leaves Nagle's algorithm on: 40 ms per small response
    listener = Listener(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise RunError(
            f"port {port} ({error.strerror})", remedy="omit --port to use a free one"
        ) from error
    return listener
