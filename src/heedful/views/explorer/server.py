"""The explorer on 127.0.0.1, for one browser: the page, and what it asks.

Only who has the random word of the address is answered: it comes with the first request, and then
stands in a cookie that no other site can send. Host and Origin are compared, so that a name that
points to 127.0.0.1 opens nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from heedful.errors import HeedfulError
from heedful.views.explorer.answers import Answers, Where
from heedful.views.explorer.pyramid import Pyramid
from heedful.views.explorer.tiles import Place
from heedful.views.explorer.turns import Turns

PAGE = Path(__file__).parent / "page"
COOKIE = "heedful"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
LONGEST, MOST = 4096, 2_000_000  # characters of an address, bytes of a text


class Explorer:
    """What answers a browser; `app` is an ASGI application, `word` opens it."""

    def __init__(self, answers: Answers, port: int, model: Any = None) -> None:
        self.answers, self.model, self.word = answers, model, secrets.token_urlsafe(24)
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._asked: list[Pyramid] = []
        self.turns = Turns(self._build)
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/ask/{question}", self._ask),
                Route("/record", self._record, methods=["POST"]),
                Mount("/page", StaticFiles(directory=PAGE)),
            ]
        )
        self.app.add_middleware(BaseHTTPMiddleware, dispatch=self._guard)

    async def _guard(
        self, request: Request, go_on: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = self._refusal(request) or await go_on(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    def _refusal(self, request: Request) -> Response | None:
        """What answers one who may not ask; None to one who may."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts or (origin and origin.removeprefix("http://") not in self.hosts):
            return PlainTextResponse("not this host", 403)
        if len(str(request.url)) > LONGEST:
            return PlainTextResponse("too long an address", 414)
        given = request.query_params.get("word")
        if given is not None and secrets.compare_digest(given.encode(), self.word.encode()):
            answer = RedirectResponse("/")
            answer.set_cookie(COOKIE, self.word, httponly=True, samesite="strict")
            return answer
        kept = request.cookies.get(COOKIE, "")
        if secrets.compare_digest(kept.encode(), self.word.encode()):
            return None
        return PlainTextResponse("open the address that the command printed", 403)

    async def _page(self, request: Request) -> Response:
        return Response((PAGE / "index.html").read_bytes(), media_type="text/html")

    async def _ask(self, request: Request) -> Response:
        question = QUESTIONS.get(request.path_params["question"])
        if question is None:
            return PlainTextResponse("no such question", 404)
        try:
            asked = dict(request.query_params)
            data = await _unless_gone(request, self.turns.ask(lambda: question(self, asked)))
        except (KeyError, ValueError, LookupError, HeedfulError) as error:
            return PlainTextResponse(" ".join(str(error).split()), 400)
        if data is None:
            return Response(status_code=499)
        return Response(data, media_type="application/octet-stream")

    async def _record(self, request: Request) -> Response:
        """Record a text that was typed into the page; what is known of all texts then."""
        if self.model is None:
            return PlainTextResponse("there is no model here, only recordings", 400)
        text = await _body(request)
        if text is None:
            return PlainTextResponse(f"a text of more than {MOST:,} bytes", 413)
        try:
            await self.turns.answered(lambda: self._add(text))
        except HeedfulError as error:
            return PlainTextResponse(str(error), 400)
        return Response(self.answers.about(), media_type="application/octet-stream")

    def _add(self, text: str) -> None:
        short = " ".join(text.split())
        name = short if len(short) <= 40 else short[:39] + "…"
        self.answers.texts.add(name, self.model.record(text))

    def _build(self) -> bool:
        """While nobody asks, build what was wanted last; whether there was anything to do."""
        while self._asked and self._asked[-1].is_whole:
            self._asked.pop()
        if not self._asked:
            return False
        self._asked[-1].build(lambda: not self.turns.is_asked)
        return True

    def want(self, pyramid: Pyramid) -> None:
        """Build a pyramid next."""
        if not pyramid.is_whole:
            self._asked = [one for one in self._asked if one is not pyramid] + [pyramid]
            self.turns.wake()


async def _unless_gone(request: Request, future: Any) -> bytes | None:
    """What the future brings; None where the browser does not wait for it any more."""
    answer = asyncio.wrap_future(future)
    while not answer.done():
        await asyncio.wait([answer], timeout=0.1)
        if not answer.done() and await request.is_disconnected():
            future.cancel()
            return None
    return answer.result()


async def _body(request: Request) -> str | None:
    """The text of a request; None where it is too long."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST:
            return None
    return data.decode("utf-8", "replace")


def _where(asked: dict[str, str]) -> Where:
    recording, text, call = (int(part) for part in asked["call"].split("."))
    return recording, text, call


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _range(text: str) -> range:
    start, stop = (int(part) for part in text.split("-"))
    return range(start, stop)


def _tile(of: Explorer, asked: dict[str, str]) -> bytes:
    where = _where(asked)
    head, level, row, column = _numbers(asked["place"])
    place = Place(head, level, row, column, asked.get("reduce", "mean"))
    data = of.answers.tile(where, place)
    if b'"sampled"' in data[:64]:
        of.want(of.answers.pyramid(where, place.head, place.reduce))
    return data


def _region(asked: dict[str, str]) -> tuple[int, range, range]:
    return int(asked["head"]), _range(asked["queries"]), _range(asked["keys"])


QUESTIONS: dict[str, Callable[[Explorer, dict[str, str]], bytes]] = {
    "about": lambda of, asked: of.answers.about(),
    "small": lambda of, asked: of.answers.small(_where(asked)),
    "scores": lambda of, asked: of.answers.scores(_where(asked), lambda share: None),
    "tile": _tile,
    "tokens": lambda of, asked: of.answers.tokens(
        _where(asked), asked["axis"], int(asked["start"]), int(asked["stop"])
    ),
    "find": lambda of, asked: of.answers.find(_where(asked), asked["axis"], asked["text"]),
    "row": lambda of, asked: of.answers.row(
        _where(asked), _numbers(asked["heads"]), int(asked["at"])
    ),
    "column": lambda of, asked: of.answers.column(
        _where(asked), _numbers(asked["heads"]), int(asked["at"])
    ),
    "cell": lambda of, asked: of.answers.cell(
        _where(asked), int(asked["head"]), int(asked["query"]), int(asked["key"])
    ),
    "part": lambda of, asked: of.answers.part(_where(asked), *_region(asked)),
    "strongest": lambda of, asked: of.answers.strongest(
        _where(asked), *_region(asked), int(asked["count"])
    ),
}
