"""The server of the explorer on 127.0.0.1: the page, its requests, and new texts to record."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.errors import HeedfulError, RunError
from heedful.files import parse_json
from heedful.views.explorer.access import Guard
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.generation import ACTIONS, Generation, recording_file
from heedful.views.explorer.handlers import ENDPOINTS, Handlers
from heedful.views.explorer.jobs import FaultError, RefusedError, Worker
from heedful.views.explorer.one_file import PAGE, page_files, write
from heedful.views.explorer.request import Request

# HTTP status by the class of an error; all other errors have 400
STATUSES: dict[type[HeedfulError], int] = {RefusedError: 503, FaultError: 500}
GONE = 499  # status if the browser has closed the connection
BODY_LIMIT = 2_000_000  # bytes
HOST = "127.0.0.1"
READ_LIMIT = 5.0  # seconds to tokenize a typed text
SLOW = f"tokenizing the text takes more than {READ_LIMIT:g} seconds; expected a shorter text"
GRACE = 2  # seconds for responses in progress when the server ends
NewAddress = Callable[..., str]  # `Explorer.new_address`
CONNECTIONS = 1000  # further requests are refused
DEADLINE = 10.0  # seconds for the headers of a request, and for its body


class Explorer:
    """The web application; `app` is its ASGI application.

    Args:
        handlers: the handlers of a catalogue.
        port: the port of the server.
        models: by name, the loaded models that record texts typed into the page.
        generation: a generation that the page controls.
        lifetime: the seconds for which an unused address works.
    """

    def __init__(
        self,
        handlers: Handlers,
        port: int,
        models: Mapping[str, Any] | None = None,
        generation: Generation | None = None,
        lifetime: float = math.inf,
    ) -> None:
        self.handlers, self.models, self.port = handlers, dict(models or {}), port
        self.generation: Any = generation
        handlers.models = self.models
        if generation is not None:
            handlers.generation = generation.about
        watched = {} if generation is None else {"watched": generation.work}
        self.reader = Worker()
        self.worker = Worker(handlers.background.work, **watched)
        routes = [
            Route("/", self._page),
            Route("/ask/{endpoint}", self._ask),
            Route("/page/{path:path}", self._file),
            Route("/file.html", self._one_file),
        ]
        if self.models:
            routes.append(Route("/record", self._record, methods=["POST"]))
        if generation is not None:
            routes += [
                Route("/generation", self._generation_status),
                Route("/generation/file", self._generation_file),
                Route("/generation/{action}", self._generation_action, methods=["POST"]),
            ]
        self.app = Guard(Starlette(routes=routes), port, lifetime)

    def new_address(self, on_use: Callable[[], object] = lambda: None) -> str:
        """Return an address that opens the page once, and calls `on_use` when it does."""
        return f"http://{HOST}:{self.port}/?word={self.app.new_word(on_use)}"

    def server(self) -> uvicorn.Server:
        """Return the server of the application."""
        settings = uvicorn.Config(
            self.app, loop="asyncio", http=TimedProtocol, ws="none", lifespan="off",
            log_level="critical", access_log=False, proxy_headers=False, server_header=False,
            limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=GRACE,
        )  # fmt: skip
        return ClosingServer(settings)

    async def _page(self, request: HTTPRequest) -> Response:
        return HTMLResponse((PAGE / "index.html").read_bytes())

    async def _file(self, request: HTTPRequest) -> Response:
        """Return the page's script or style sheet; no path leads to any other file."""
        kind, data = page_files().get(request.path_params["path"], ("", b""))
        if not kind:
            return PlainTextResponse("no such file", 404)
        return Response(data, headers={"Content-Encoding": "gzip"}, media_type=kind)

    async def _ask(self, request: HTTPRequest) -> Response:
        endpoint, parameters = request.path_params["endpoint"], dict(request.query_params)
        if endpoint not in ENDPOINTS:
            return PlainTextResponse("no such endpoint", 404)
        return await self._respond(request, lambda: self.handlers.handle(endpoint, parameters))

    async def _record(self, request: HTTPRequest) -> Response:
        """Record a text or a pair of texts, and return the updated catalogue."""
        texts = _json(await _body(request))
        is_valid = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not is_valid or len(texts) not in (1, 2):
            return PlainTextResponse("expected a JSON list of one or two texts", 400)
        if not await self._is_tokenized(texts):
            return PlainTextResponse(SLOW, 400)
        return await self._respond(request, lambda: self._add_recording(texts))

    def _add_recording(self, texts: list[str]) -> bytes:
        catalogue, models = self.handlers.catalogue, self.models.items()
        recordings = {name: model.record(*texts, values=True) for name, model in models}
        title = catalogue.title_of(texts)
        for name, recording in recordings.items():
            catalogue.add(title + f" · {name}" * (len(models) > 1), recording, texts)
        return self.handlers.about()

    async def _one_file(self, request: HTTPRequest) -> Response:
        """Return the page as one file, with the view of the parameter `view`."""
        view = request.query_params.get("view", "")

        def work() -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                path, texts = Path(folder) / "page.html", self.handlers.catalogue
                write(path, texts, f"{', '.join(texts.names)} · heedful", view=view)
                return path.read_bytes()

        return await self._respond(request, work)

    async def _generation_status(self, request: HTTPRequest) -> Response:
        """Return the status of the generation, or the alternatives at the position `at`."""
        text = request.query_params.get("at")
        if text is None:
            return await self._respond(request, self.generation.status)
        position = int(text) if text.isascii() and text.isdigit() and len(text) < 13 else None
        return await self._respond(request, lambda: self.generation.alternatives(position))

    async def _generation_file(self, request: HTTPRequest) -> Response:
        """Return a live text as a recording file."""
        parameters, catalogue = Request(dict(request.query_params)), self.handlers.catalogue
        return await self._respond(request, lambda: recording_file(catalogue, parameters))

    async def _generation_action(self, request: HTTPRequest) -> Response:
        """Run an action of the generation, and return its status."""
        action = request.path_params["action"]
        if action not in ACTIONS:
            return PlainTextResponse("no such action", 404)
        fields = _json(await _body(request))
        prompt = fields.get("prompt") if isinstance(fields, dict) else None
        if isinstance(prompt, str) and not await self._is_tokenized([prompt]):
            return PlainTextResponse(SLOW, 400)
        return await self._respond(request, lambda: self.generation.do(action, fields))

    async def _is_tokenized(self, texts: list[str]) -> bool:
        """Tokenize typed texts in a thread of its own; return False after `READ_LIMIT` seconds.

        A pattern in the files of a tokenizer may take hours. The thread cannot be ended; until it
        ends, further texts are refused, and all other requests are answered.
        """
        all_tokenizers = (getattr(model, "tokenizer", None) for model in self.models.values())
        tokenizers = [tokenizer for tokenizer in all_tokenizers if tokenizer is not None]
        pairs = itertools.product(tokenizers, texts)
        work = self.reader.submit(lambda: [tokenizer.encode(text) for tokenizer, text in pairs])
        future = asyncio.wrap_future(work)
        done, _ = await asyncio.wait([future], timeout=READ_LIMIT)
        if done:
            future.exception()  # the worker, which tokenizes the text again, reports it
        else:
            future.cancel()
        return bool(done)

    async def _respond(self, request: HTTPRequest, work: Any) -> Response:
        """Run the work in the worker thread; return its result, or its error in one line."""
        future = self.worker.submit(work)
        try:
            data = await _unless_gone(request, future)
        except HeedfulError as error:
            return PlainTextResponse(str(error), STATUSES.get(type(error), 400))
        if data is None:
            return Response(status_code=GONE)
        return Response(data, media_type="application/octet-stream")


async def _unless_gone(request: HTTPRequest, future: Future) -> bytes | None:
    """Return the result of the future; None if the browser closes the connection first."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    result, gone = asyncio.wrap_future(future), asyncio.ensure_future(disconnected())
    await asyncio.wait([result, gone], return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if result.done():
        return result.result()
    result.cancel()  # cancels the future, too
    return None


async def _body(request: HTTPRequest) -> str:
    """Return the body of a request, up to `BODY_LIMIT` bytes."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > BODY_LIMIT:
            raise HTTPException(413, f"a text of more than {BODY_LIMIT:,} bytes")
    return data.decode("utf-8", "replace")


def _json(body: str) -> Any:
    """Return the value of a JSON body; None if it is malformed."""
    try:
        return parse_json(body)
    except ValueError:
        return None


def serve(
    catalogue: Catalogue, ready: Callable[[NewAddress], object], *, port: int = 0, **options: Any
) -> None:
    """Run the server until it is interrupted.

    Args:
        catalogue: the recordings to show.
        ready: called with `Explorer.new_address`, once addresses can be opened.
        port: the port; 0 picks a free one.
        options: `models`, `generation` and `lifetime`, as for `Explorer`.

    Raises:
        RunError: a port that cannot be opened, for example because it is in use.
    """
    with listening(port) as listener:
        explorer = Explorer(Handlers(catalogue), listener.getsockname()[1], **options)
        try:
            ready(explorer.new_address)  # the socket listens already
            explorer.server().run(sockets=[listener])
        finally:
            explorer.worker.shutdown()


class ClosingServer(uvicorn.Server):
    """uvicorn's server, which when it ends also closes connections that are still in use."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        await super().shutdown(sockets)
        for connection in self.server_state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)  # the aborted connections are closed


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, which also closes connections without a complete request in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the checks."""
        super().connection_made(transport)
        self.loop.call_later(DEADLINE, self._check, self.cycle)

    def _check(self, previous: Any) -> None:
        """Close the connection if it waits for the same request as at the previous check."""
        if self.cycle is previous and self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(DEADLINE, self._check, self.cycle)


def listening(port: int) -> socket.socket:
    """Return a socket that listens at a port, for connections from this machine only."""
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise RunError(
            f"port {port} ({error.strerror})", remedy="omit --port to use a free one"
        ) from error
    # its connections inherit this; with Nagle's algorithm, each small response takes 40 ms longer
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
