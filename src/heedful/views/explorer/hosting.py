"""Serves the explorer on this machine until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from heedful.errors import RunError
from heedful.views.explorer.answers import Answers
from heedful.views.explorer.server import Explorer
from heedful.views.explorer.texts import Texts


def serve(texts: Texts, ready: Callable[[str], None], *, port: int = 0, model: Any = None) -> None:
    """Answer one browser; `ready` is told the address once it can be opened.

    Args:
        texts: what is looked at.
        ready: called with the address.
        port: 0 is a free one.
        model: an opened model, which records what is typed into the page.

    Raises:
        RunError: a port that is taken.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(
                f"port {port} ({error.strerror})",
                remedy="leave --port out, and a free one is taken",
            ) from error
        taken = listening.getsockname()[1]
        explorer = Explorer(Answers(texts), taken, model)
        settings = uvicorn.Config(explorer.app, log_level="error", access_log=False)
        server = _Server(settings, lambda: ready(f"http://127.0.0.1:{taken}/?word={explorer.word}"))
        server.run(sockets=[listening])
        explorer.turns.end()


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        self._ready()
