"""The explorer on 127.0.0.1: the page, what it asks, and what is typed into it to be recorded."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from heedful.errors import HeedfulError, RunError
from heedful.views.explorer.access import Guard
from heedful.views.explorer.catalogue import Texts, short
from heedful.views.explorer.generation import DEEDS, Generation, file_of
from heedful.views.explorer.handlers import QUESTIONS, Answers
from heedful.views.explorer.jobs import FaultError, RefusedError, Turns, nothing
from heedful.views.explorer.one_file import PAGE, served
from heedful.views.explorer.request import Asked

# Of errors; 400 of all others
STATUSES: dict[type[HeedfulError], int] = {RefusedError: 503, FaultError: 500}
GONE = 499  # the status of an answer that nobody waits for
MOST = 2_000_000  # bytes of a text
HOST = "127.0.0.1"
LAST = 2  # seconds that an answer on its way has, when the server ends
LOOKED = 0.1  # seconds after which somebody looks whether the browser still waits


class Explorer:
    """What answers a browser; `app` is an ASGI application, `word` opens it.

    Args:
        answers: about which recordings.
        port: at which it is asked.
        model: an opened model, which records what is typed into the page.
        generation: a text that grows while the page looks at it.
    """

    def __init__(
        self,
        answers: Answers,
        port: int,
        model: Any = None,
        generation: Generation | None = None,
    ) -> None:
        self.answers, self.model = answers, model
        self.generation: Any = generation
        if model is not None:
            answers.model = {"name": model.directory.name, "pairs": model.reads_pairs}
        if generation is not None:
            answers.written = generation.about
        watched = nothing if generation is None else generation.work
        self.turns = Turns(answers.background.work, watched=watched)
        routes = [
            Route("/", self._page),
            Route("/ask/{question}", self._ask),
            Route("/page/{path:path}", self._file),
        ]
        if model is not None:
            routes.append(Route("/record", self._record, methods=["POST"]))
        if generation is not None:
            routes += [
                Route("/generation", self._grown),
                Route("/generation/file", self._saved),
                Route("/generation/{deed}", self._done, methods=["POST"]),
            ]
        self.app = Guard(Starlette(routes=routes), port, secrets.token_urlsafe(24))

    @property
    def word(self) -> str:
        """What opens it."""
        return self.app.word

    async def _page(self, request: Request) -> Response:
        return HTMLResponse((PAGE / "index.html").read_bytes())

    async def _file(self, request: Request) -> Response:
        """The page's script or its style sheet; no path leads to any other file."""
        kind, data = served().get(request.path_params["path"], ("", b""))
        if not kind:
            return PlainTextResponse("no such file", 404)
        return Response(data, headers={"Content-Encoding": "gzip"}, media_type=kind)

    async def _ask(self, request: Request) -> Response:
        question, words = request.path_params["question"], dict(request.query_params)
        if question not in QUESTIONS:
            return PlainTextResponse("no such question", 404)
        return await self._told(request, lambda: self.answers.ask(question, words))

    async def _record(self, request: Request) -> Response:
        """Record a text that was typed, or a pair; what is known of all texts then."""
        body = await _body(request)
        texts = _texts(body)
        if texts is None:
            return PlainTextResponse("expected a list of one text, or of two", 400)
        return await self._told(request, lambda: self._recorded(texts))

    def _recorded(self, texts: list[str]) -> bytes:
        self.answers.texts.add(short(" · ".join(texts)), self.model.record(*texts))
        return self.answers.about()

    async def _grown(self, request: Request) -> Response:
        """How far the text is that grows; with `at`, what else could stand at a place of it."""
        at = request.query_params.get("at")
        if at is None:
            return await self._told(request, self.generation.told)
        place = int(at) if at.isascii() and at.isdigit() and len(at) < 13 else None
        return await self._told(request, lambda: self.generation.rivals(place))

    async def _saved(self, request: Request) -> Response:
        """A text that grew, as the file of a recording."""
        words = dict(request.query_params)
        return await self._told(request, lambda: file_of(self.answers.texts, Asked(words)))

    async def _done(self, request: Request) -> Response:
        """Begin, stop, go on or choose another token; how far the text is then."""
        deed = request.path_params["deed"]
        if deed not in DEEDS:
            return PlainTextResponse("no such deed", 404)
        body = await _body(request)
        return await self._told(request, lambda: self.generation.do(deed, _json(body)))

    async def _told(self, request: Request, work: Any) -> Response:
        """What the work gives when its turn has come, or why it gives nothing, in one line."""
        future = self.turns.ask(work)
        try:
            data = await _unless_gone(request, future)
        except HeedfulError as error:
            return PlainTextResponse(str(error), STATUSES.get(type(error), 400))
        if data is None:
            return Response(status_code=GONE)
        return Response(data, media_type="application/octet-stream")


async def _unless_gone(request: Request, future: Future) -> bytes | None:
    """What the future brings; None where the browser does not wait for it any more."""
    answer = asyncio.wrap_future(future)
    while not answer.done():
        await asyncio.wait([answer], timeout=LOOKED)
        if not answer.done() and await request.is_disconnected():
            answer.cancel()  # and the future with it
            return None
    return answer.result()


async def _body(request: Request) -> str:
    """The text of a request, where it is not too long."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST:
            raise HTTPException(413, f"a text of more than {MOST:,} bytes")
    return data.decode("utf-8", "replace")


def _texts(body: str) -> list[str] | None:
    """One text or two, as JSON; None where it is something else."""
    found = _json(body)
    are = isinstance(found, list) and all(isinstance(text, str) for text in found)
    return found if are and len(found) in (1, 2) else None


def _json(body: str) -> Any:
    """What a body says; None where that is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # the latter of lists in lists without end
        return None


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
