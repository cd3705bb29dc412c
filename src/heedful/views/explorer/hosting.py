"""Serves the explorer on this machine until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from heedful.errors import RunError
from heedful.views.explorer.answers import Answers
from heedful.views.explorer.generation import Generation
from heedful.views.explorer.server import Explorer
from heedful.views.explorer.texts import Texts

HOST = "127.0.0.1"
LAST = 2  # seconds that an answer on its way has, when the server ends


def serve(
    texts: Texts,
    ready: Callable[[str], None],
    *,
    port: int = 0,
    model: Any = None,
    generation: Generation | None = None,
) -> None:
    """Answer browsers; `ready` is told the address, which can be opened.

    Args:
        texts: what is looked at.
        ready: called with the address.
        port: 0 is a free one.
        model: an opened model, which records what is typed into the page.
        generation: a text that grows while the page looks at it.

    Raises:
        RunError: a port that is taken.
    """
    with _listening(port) as listening:
        taken = listening.getsockname()[1]
        explorer = Explorer(Answers(texts), taken, model, generation)
        settings = uvicorn.Config(
            explorer.app, log_level="critical", access_log=False, lifespan="off", ws="none",
            proxy_headers=False, server_header=False, timeout_graceful_shutdown=LAST,
        )  # fmt: skip
        try:
            ready(f"http://{HOST}:{taken}/?word={explorer.word}")  # who comes now waits a moment
            uvicorn.Server(settings).run(sockets=[listening])
        finally:
            explorer.turns.end()


def _listening(port: int) -> socket.socket:
    """A socket at a port of this machine alone."""
    # told to be TCP: else asyncio lets small answers wait for one another, 40 ms each
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise RunError(
            f"port {port} ({error.strerror})", remedy="leave --port out, and a free one is taken"
        ) from error
    return listening
