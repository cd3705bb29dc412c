"""Access control of the server: only a page that was opened by an address of the server gets data.

An address contains a word, which works once. The page exchanges the word for the token of the
session (POST /session), and sends the token with each request in the header Authorization: a server
on another port of this machine would receive a cookie, but receives no header. The page itself, at
/ and /page, contains no data and needs no token. The checks of the headers Host and Origin keep out
domains that resolve to 127.0.0.1, and pages from other ports.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
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
ALLOWED_SITES = (None, "same-origin", "none")  # allowed Sec-Fetch-Site headers; None: no header
NO_ACCESS = (
    "No access: this address was used before, has expired, or is from an earlier start of the "
    "server. For a new address, press Enter in the terminal of heedful look, or start it again."
)


class Guard:
    """An ASGI application that passes allowed requests on to `app`, and refuses all others.

    Args:
        app: the guarded application.
        port: the port of the server.
        lifetime: the seconds for which an unused word works.
    """

    def __init__(self, app: ASGIApp, port: int, lifetime: float) -> None:
        self.app, self.token = app, secrets.token_urlsafe(24)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._lifetime = lifetime
        self._words: dict[str, tuple[float, Callable[[], object]]] = {}  # expiry, `on_use`

    def new_word(self, on_use: Callable[[], object] = lambda: None) -> str:
        """Return a new word; `on_use` is called when a page exchanges it for the token."""
        word = secrets.token_urlsafe(24)
        self._words[word] = time.monotonic() + self._lifetime, on_use
        return word

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; add `HEADERS` to every response."""
        if scope["type"] != "http":  # the server has no websockets
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        respond = self._response(Request(scope)) or self.app
        await respond(scope, receive, with_headers)

    def _response(self, request: Request) -> Response | None:
        """Return the token for a word, or a refusal; None for an allowed request."""
        path = request.url.path
        if not self._is_same_origin(request.headers, is_shell=path == "/"):
            return PlainTextResponse("wrong host or origin", 403)
        if path == "/" or path.startswith("/page/"):
            return None
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.method == "POST" and path == "/session" and self._use(bearer):
            return PlainTextResponse(self.token)
        return None if _equal(bearer, self.token) else PlainTextResponse(NO_ACCESS, 403)

    def _is_same_origin(self, headers: Headers, is_shell: bool) -> bool:
        """Return whether a request is for this server, and not from another server's page.

        A link from another site may open the page: it has no data, and gets none for a wrong word.
        """
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        return (
            len(hosts) == 1
            and hosts[0].lower() in self._hosts
            and (not origins or origins == [f"http://{hosts[0].lower()}"])
            and (is_shell or headers.get("sec-fetch-site") in ALLOWED_SITES)
        )

    def _use(self, text: str) -> bool:
        """Return whether a text is a word that still works, which then works no more."""
        word = next((word for word in list(self._words) if _equal(text, word)), "")
        expiry, on_use = self._words.pop(word, (0.0, None))
        if on_use is None or time.monotonic() > expiry:
            return False
        on_use()
        return True


def _equal(text: str, secret: str) -> bool:
    return secrets.compare_digest(text.encode(), secret.encode())
