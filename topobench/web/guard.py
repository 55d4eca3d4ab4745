"""Who may ask, for what, and what a browser may do with the answer."""

from __future__ import annotations

import hashlib
import hmac
import http.cookies
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topobench.errors import UsageError

COOKIE = "topobench"
SHORTEST = 16
"""Characters of a token."""
OPEN = frozenset({"/healthz", "/login", "/static/page.css"})
"""What needs no token: it tells nothing of what was measured."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """
    The gate before every page.

    Args:
        token: What a visitor must know; None where only this host is listened to.
        names: Names by which a browser may call this server; None for any. A page of another
            origin that points its own name at this address is turned away by them.
    """

    def __init__(self, app: ASGIApp, token: str | None, names: frozenset[str] | None) -> None:
        self.app, self.token, self.names = app, token, names
        self._session = "" if token is None else session_of(token, secrets.token_hex(16))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or turn away."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        scope.setdefault("state", {})["session"] = self._session
        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self.names is not None and _name(headers.get("host", "")) not in self.names:
            return PlainTextResponse("unknown name of this server\n", status_code=421)
        posts = scope["method"] == "POST" and path == "/login"
        if scope["method"] not in ("GET", "HEAD") and not posts:
            allowed = {"allow": "GET, HEAD"}
            return PlainTextResponse("only to be read\n", status_code=405, headers=allowed)
        if self.token is None or path in OPEN or self._is_known(headers):
            return None
        if "text/html" in headers.get("accept", ""):
            wanted = quote(_asked(scope), safe="/")
            return RedirectResponse(f"/login?next={wanted}", status_code=303)
        return PlainTextResponse(
            "a token is needed: Authorization: Bearer TOKEN\n",
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )

    def _is_known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.token is not None:
            return is_same(given.strip(), self.token)
        cookie = http.cookies.SimpleCookie()
        try:
            cookie.load(headers.get("cookie", ""))
        except http.cookies.CookieError:
            return False
        return COOKIE in cookie and is_same(cookie[COOKIE].value, self._session)


def session_of(token: str, salt: str) -> str:
    """What a browser keeps in place of the token; it ends with this process."""
    return hmac.new(token.encode(), salt.encode(), hashlib.sha256).hexdigest()


def is_same(a: str, b: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing of them."""
    return hmac.compare_digest(a.encode(), b.encode())


def read_token(file: Path) -> str:
    """
    The token in a file: its only line.

    Raises:
        UsageError: No such file, too short a token, or a file that others can read.
    """
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"--token-file {file}: {why}") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise UsageError(f"--token-file {file}: others can read it; chmod 600 {file}")
    if len(text) < SHORTEST or len(text.splitlines()) != 1:
        raise UsageError(
            f"--token-file {file}: one line of at least {SHORTEST} characters is needed, such as "
            f"openssl rand -hex 32 > {file}"
        )
    return text


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address."""
    return host in LOOPBACK or host.startswith("127.")


def _asked(scope: Scope) -> str:
    """The path and the query as they were sent."""
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
