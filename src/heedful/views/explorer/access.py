"""Who may ask: nobody but the browser that was given the random word, on this machine.

The word comes with the first request, and then stands in a cookie that no other site can send.
Host and Origin are compared, so that a name that points to 127.0.0.1 opens nothing, and neither
does a page from another port.
"""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    "Cache-Control": "no-store",
}
OURS = (None, "same-origin", "none")  # where a browser says that a request comes from


class Guard:
    """An ASGI application around another one, which sees no request that is refused.

    Args:
        app: what is guarded.
        port: the one port at which it is asked.
        word: what opens it.
    """

    def __init__(self, app: ASGIApp, port: int, word: str) -> None:
        self.app, self.word = app, word
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"heedful-{port}"  # cookies do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one who may not ask; let the others pass."""
        if scope["type"] != "http":  # there are no websockets here
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refusal(Request(scope)) or self.app
        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """What answers one who may not ask; None to one who may."""
        if not self._is_ours(request.headers):
            return PlainTextResponse("not this host", 403)
        given = request.query_params.get("word")
        if given is not None and request.url.path == "/" and self._is_word(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, self.word, httponly=True, samesite="strict")
            return answer
        if self._is_word(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("open the address that the command printed", 403)

    def _is_ours(self, headers: Headers) -> bool:
        """Whether a request is to this server, and from no page of another one."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        return (
            len(hosts) == 1
            and hosts[0].lower() in self._hosts
            and (not origins or origins == [f"http://{hosts[0].lower()}"])
            and headers.get("sec-fetch-site") in OURS
        )

    def _is_word(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), self.word.encode())
