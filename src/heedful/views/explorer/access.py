"""Access control of the server: only a browser that has the secret gets a response.

The printed address contains the secret. The server answers it with a cookie that stores the secret,
and that requests from other sites do not carry. The checks of the headers Host and Origin keep out
domains that resolve to 127.0.0.1, and pages from other ports.
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
ALLOWED_SITES = (None, "same-origin", "none")  # allowed Sec-Fetch-Site headers; None: no header


class Guard:
    """An ASGI application that passes allowed requests on to `app`, and refuses all others.

    Args:
        app: the guarded application.
        port: the port of the server.
        secret: the secret that grants access.
    """

    def __init__(self, app: ASGIApp, port: int, secret: str) -> None:
        self.app, self.secret = app, secret
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"heedful-{port}"  # has the port, because all ports of a host share cookies

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
        """Return a refusal, or the redirect that sets the cookie; None for an allowed request."""
        if not self._is_same_origin(request.headers):
            return PlainTextResponse("wrong host or origin", 403)
        secret = request.query_params.get("word")
        if secret is not None and request.url.path == "/" and self._is_secret(secret):
            redirect = RedirectResponse("/", 303)
            redirect.set_cookie(self._cookie, self.secret, httponly=True, samesite="strict")
            return redirect
        if self._is_secret(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("no access: open the address that the command printed", 403)

    def _is_same_origin(self, headers: Headers) -> bool:
        """Return whether a request is for this server, and not from another server's page."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        return (
            len(hosts) == 1
            and hosts[0].lower() in self._hosts
            and (not origins or origins == [f"http://{hosts[0].lower()}"])
            and headers.get("sec-fetch-site") in ALLOWED_SITES
        )

    def _is_secret(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "surrogatepass"), self.secret.encode())
