"""The web server: routes, errors as pages, and running it until it is told to stop."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from topobench.errors import NotFound, RefusedError, StoreError, TopobenchError, UsageError
from topobench.masking import mask_urls
from topobench.probes import registry
from topobench.report.page.page import FOLDER, plotly_file
from topobench.web import compare_page, pages
from topobench.web.guard import COOKIE, LOOPBACK, Guard, is_loopback, is_same, read_token
from topobench.web.patience import Impatient
from topobench.web.site import Site

THREADS = 4
"""Pages made at once: a visitor cannot take the whole host."""
_LONGEST_FORM = 4096
_NEEDED = (
    "numpy",
    "topobench.comparing",
    "topobench.db.look",
    "topobench.db.queries",
    "topobench.db.samples",
    "topobench.db.schedules",
    "topobench.db.source",
    "topobench.db.strays",
    "topobench.web.metrics",
)
_STATIC = ("page.css", "page.js")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen, and what a visitor must know."""

    host: str
    port: int
    token: str | None

    @classmethod
    def of(cls, host: str, port: int, token_file: Path | None) -> Address:
        """
        Check what was asked for.

        Raises:
            UsageError: Others could reach it and no token is set, or the token is no good.
        """
        token = None if token_file is None else read_token(token_file)
        if token is None and not is_loopback(host):
            raise UsageError(
                f"--host {host}: others could read it; give --token-file FILE, or listen on "
                "127.0.0.1 and forward the port (ssh -L)"
            )
        return cls(host, port, token)


def make_app(site: Site, address: Address) -> Starlette:
    """The application; it reads the store and changes nothing."""
    names = frozenset(LOOPBACK | {address.host}) if address.token is None else None
    app = Starlette(
        routes=_routes(site, address),
        middleware=[Middleware(Guard, token=address.token, names=names)],
        exception_handlers={404: _nothing_here, 500: _our_fault},
    )
    app.state.limiter = None
    return app


def _routes(site: Site, address: Address) -> list[Route]:
    async def with_few_threads(request: Request, call: Callable[[Request], Response]) -> Response:
        return await anyio.to_thread.run_sync(call, request, limiter=_limiter(request.app))

    def page(make: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await with_few_threads(request, lambda r: _answered(site, r, make))

        return endpoint

    def html(make: Callable[[Request], str]) -> Callable[[Request], Any]:
        return page(lambda request: HTMLResponse(make(request)))

    return [
        Route("/", html(lambda r: pages.overview(site, r.query_params))),
        Route("/host", html(lambda r: pages.host(site, r.query_params))),
        Route("/sweeps", html(lambda r: pages.sweeps(site))),
        Route("/sweep/{id}", html(lambda r: pages.sweep(site, _id(r), r.query_params))),
        Route("/sweep/{id}/report.html", page(lambda r: _report(site, r))),
        Route("/sweep/{id}/progress", page(lambda r: JSONResponse(pages.progress(site, _id(r))))),
        Route("/compare", page(lambda r: _comparison(site, r))),
        Route(
            "/compare/progress",
            page(lambda r: JSONResponse(compare_page.progress(site, r.query_params))),
        ),
        Route("/query", html(lambda r: pages.queries(site))),
        Route("/query/{name}.csv", page(lambda r: _csv(site, r))),
        Route("/query/{name}", html(lambda r: pages.query(site, _name(r), r.query_params))),
        Route("/metrics", page(lambda r: _metrics(site))),
        Route("/healthz", page(lambda r: _health(site))),
        Route("/login", _login(address), methods=["GET", "POST"]),
        Route("/static/{name}", _static),
    ]


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _limiter(app: Starlette) -> anyio.CapacityLimiter:
    """Made at the first request: it belongs to the loop that runs then."""
    if app.state.limiter is None:
        app.state.limiter = anyio.CapacityLimiter(THREADS)
    limiter: anyio.CapacityLimiter = app.state.limiter
    return limiter


def _answered(site: Site, request: Request, make: Callable[[Request], Response]) -> Response:
    """The answer, or a page that says what is wrong."""
    from topobench.db.strays import blame

    try:
        _check_text(request)
        return make(request)
    except UsageError as error:
        form = pages.form_of(request.url.path, request.query_params)
        text = pages.trouble("That cannot be asked", str(error), form=form)
        return HTMLResponse(text, status_code=400)
    except NotFound as error:
        text = pages.trouble("Not found", str(error), _what_helps(site, error))
        return HTMLResponse(text, status_code=404)
    except StoreError as error:
        return _unreadable(site, error)
    except RefusedError as error:
        return HTMLResponse(pages.trouble("Busy", str(error)), status_code=503)
    except TopobenchError as error:
        return HTMLResponse(pages.trouble("That did not work", str(error)), status_code=500)
    except Exception:
        edited = blame(site.url)
        if edited is None:
            raise
        return _unreadable(site, edited)


def _unreadable(site: Site, error: StoreError) -> Response:
    site.lost(error)
    text = pages.trouble("The store cannot be read", str(error), _what_helps(site, error))
    return HTMLResponse(text, status_code=503)


def _what_helps(site: Site, error: StoreError) -> str:
    """The first of our commands that an error names, with the store of these pages."""
    found = re.search("`(topobench [^`]+)`", str(error))
    if found is None:
        return ""
    store = "" if "--store" in found[1] else f" --store {shlex.quote(mask_urls(site.url))}"
    return f"{found[1]}{store}"


def _check_text(request: Request) -> None:
    """
    Refuse what PostgreSQL cannot even look for.

    Raises:
        UsageError: A NUL is in the address.
    """
    if any("\0" in text for text in (request.url.path, *request.query_params.values())):
        raise UsageError("a NUL character is in the address: nothing is called so")


def _comparison(site: Site, request: Request) -> Response:
    """202 while it is being compared."""
    text, whole = compare_page.compare(site, request.query_params)
    return HTMLResponse(text, status_code=200 if whole else 202)


def _csv(site: Site, request: Request) -> Response:
    name = _name(request)
    text = pages.query_csv(site, name, request.query_params)
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _report(site: Site, request: Request) -> Response:
    """To be kept, not looked at here: its scripts stand in the file itself."""
    found = site.store().resolve_sweep(_id(request))
    headers = {"content-disposition": f'attachment; filename="topobench-{found[:8]}.html"'}
    return HTMLResponse(site.report(found), headers=headers)


def _metrics(site: Site) -> Response:
    from topobench.web import metrics

    return Response(metrics.exposition(site), headers={"content-type": metrics.CONTENT_TYPE})


def _health(site: Site) -> Response:
    """200 while the store can be read, whatever a hand wrote into it: a restart mends nothing."""
    from topobench.db import look

    try:
        look.touch(site.store())
    except StoreError as error:
        site.lost(error)
        return JSONResponse({"status": "store cannot be read"}, status_code=503)
    return JSONResponse({"status": "ok"})


def _login(address: Address) -> Callable[[Request], Any]:
    async def login(request: Request) -> Response:
        wanted = _own_path(request.query_params.get("next", "/"))
        if address.token is None:
            return RedirectResponse("/", status_code=303)
        if request.method != "POST":
            return HTMLResponse(pages.rendered("login", wanted=wanted, wrong=False))
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > _LONGEST_FORM:
                    return PlainTextResponse("too long\n", status_code=413)
        except ClientDisconnect:
            return PlainTextResponse("incomplete\n", status_code=400)  # nobody reads it
        if not is_same(_field(body, "token"), address.token):
            text = pages.rendered("login", wanted=wanted, wrong=True)
            return HTMLResponse(text, status_code=403)
        answer = RedirectResponse(wanted, status_code=303)
        secure = request.url.scheme == "https"
        session = request.state.session
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
        return answer

    return login


def _own_path(text: str) -> str:
    """A path of this server; anything that could lead elsewhere becomes the first page."""
    fine = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if fine else "/"


def _field(body: bytes, name: str) -> str:
    from urllib.parse import parse_qs

    found = parse_qs(body.decode("utf-8", "replace"))
    return found.get(name, [""])[0].strip()


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    headers = {"cache-control": "private, max-age=86400"}
    if name in _STATIC:
        return FileResponse(FOLDER / "static" / name, headers=headers)
    if name == "plotly.js":
        return FileResponse(plotly_file(), media_type="text/javascript", headers=headers)
    return PlainTextResponse("no such file\n", status_code=404)


async def _nothing_here(request: Request, error: Exception) -> Response:
    return HTMLResponse(pages.trouble("Not found", "There is no such page."), status_code=404)


async def _our_fault(request: Request, error: Exception) -> Response:
    text = pages.trouble(
        "A fault in topobench", "The server's log has the details; please report it."
    )
    return HTMLResponse(text, status_code=500)


class _Server(uvicorn.Server):
    """Ends well at the first signal, without raising it again."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self._site.stop()
            self.handle_exit(number, frame)

        kept = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


def _look_at_keys(site: Site) -> None:
    """So that the first page need not: over ten million readings it would wait 0.2 s for it."""
    if not site.url.startswith("sqlite"):  # the others have none that lead nowhere
        return
    from topobench.db import look

    with contextlib.suppress(TopobenchError):  # pages tell it
        look.check_keys(site.store(), "latest")


def serve(url: str, address: Address, ready: Callable[[str], None]) -> str:
    """
    Serve until SIGINT or SIGTERM.

    Args:
        url: Of the store.
        ready: Is told where, once it listens.

    Returns:
        Where it listened.

    Raises:
        TopobenchError: The address cannot be listened on.
    """
    listener = _listen(address)
    port = listener.getsockname()[1]
    shown = f"[{address.host}]" if ":" in address.host else address.host
    where = f"http://{shown}:{port}"
    site = Site(url, address.token)
    config = uvicorn.Config(
        make_app(site, address),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=64,
        timeout_graceful_shutdown=5,
        loop="asyncio",
        http=Impatient,
        ws="none",
    )
    _load()
    _look_at_keys(site)
    ready(where)
    try:
        _Server(config, site).run(sockets=[listener])
    finally:
        site.close()
        listener.close()
    return where


def _load() -> None:
    """Import and compile what pages need: no visitor waits for it, and no two threads import."""
    for name in _NEEDED:
        importlib.import_module(name)
    pages.compile_templates()
    for probe in registry.PROBES:
        registry.load(probe)


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise TopobenchError(
            f"cannot listen on {address.host} port {address.port}: {why}; give --port another"
        ) from error
    return listener
