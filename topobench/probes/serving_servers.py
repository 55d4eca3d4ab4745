"""
The server under load: started under the worker's binding, or running already.

A server is a child of the worker and inherits its CPUs and memory policy. The worker stays
its supervisor: whatever the server started ends with the cell.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import foreign
from topobench.probes.serving_client import REDIRECTS, Client
from topobench.reading import ReasonCode
from topobench.server_definition import HOST, Server

_POLL_SECONDS = 0.1
_VERSION_SECONDS = 30.0
_GRACE_SECONDS = 10.0
_VERSION_PAGES = ("/version", "/info", "/get_server_info", "/props")
"""Of vLLM, TGI, SGLang and llama.cpp."""
_VERSION_KEYS = ("version", "build_info")
_MOST_MODELS = 5
_LONGEST_NAME = 300


@dataclass(frozen=True, slots=True)
class Running:
    """
    A server that answers, or will.

    Args:
        process: Its first process; None if topobench did not start it.
        argv: What started it.
        version: What its version command printed.
    """

    base: str
    process: subprocess.Popen[bytes] | None = None
    argv: tuple[str, ...] = ()
    version: str | None = None

    def check(self) -> None:
        """
        Whether it still runs, as far as that is known.

        Raises:
            ProbeError: ``crashed``.
        """
        if self.process is not None and (code := self.process.poll()) is not None:
            text = f"the server {self.argv[0]} ended with exit code {code}; its log has the reason"
            raise ProbeError(ReasonCode.CRASHED, text)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Running]:
    """
    The server, started if it is one to start; ended with the block, with all it started.

    Raises:
        ProbeUnavailable: ``no_binary``.
    """
    if server.url is not None:
        yield Running(server.url)
        return
    env = foreign.environment(server.env)
    if shutil.which(server.argv[0], path=env.get("PATH")) is None:
        text = f"the program {server.argv[0]} of the server {server.name} is not on this host"
        raise ProbeUnavailable(ReasonCode.NO_BINARY, text)
    port = _free_port()
    argv = server.command(port)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(server.folder).expanduser() if server.folder else Path(made)
        version = _version(server, env, folder, Path(made))
        with foreign.running(argv, env=env, folder=folder, grace_seconds=_GRACE_SECONDS) as process:
            yield Running(f"http://{HOST}:{port}", process, argv, version)


async def ready(client: Client, server: Server, found: Running) -> list[str]:
    """
    Wait until the server lists its models; the models.

    One that topobench did not start must be ready at once. A server without such a list is
    ready when it answers at all, and gives none.

    Raises:
        ProbeError: ``crashed``, ``deadline``, ``endpoint_refused``, ``wrong_model``.
        Exception: What the connection raised, of a server that was not started here.
    """
    until = time.monotonic() + server.timeout_seconds
    while True:
        found.check()
        try:
            status, text = await client.get("/v1/models")
        except Exception:
            if found.process is None:
                raise
            status, text = 503, ""
        if status in (401, 403):
            hint = f"the variable {server.key_env}" if server.key_env else "key_env"
            said = f"{client.target.base} answered {status}: look at {hint} of this server"
            raise ProbeError(ReasonCode.ENDPOINT_REFUSED, said)
        if status == 200:
            return _models(text, server.model)
        if status < 500 or found.process is None:
            if server.model is None:
                raise _unlisted(client.target.base, status)
            return []
        if time.monotonic() > until:
            text = f"{server.name} was not ready after {server.timeout_seconds:g} s"
            raise ProbeError(ReasonCode.DEADLINE, text)
        await asyncio.sleep(_POLL_SECONDS)


def _unlisted(base: str, status: int) -> ProbeError:
    """Why a server that gave no list of models, and whose model is not known, cannot be asked."""
    said = f"{base} answered {status} when asked for its models"
    if 300 <= status < 400:
        return ProbeError(ReasonCode.ENDPOINT_REFUSED, f"{said}: {REDIRECTS}")
    if status == 429 or status >= 500:
        return ProbeError(ReasonCode.ENDPOINT_REFUSED, f"{said}: is it ready, and not too busy?")
    text = f"{said}: is that the address before /v1? If it has no such list, name one by model:"
    return ProbeError(ReasonCode.WRONG_MODEL, text)


def model_of(server: Server, listed: list[str]) -> str:
    """
    The name that requests carry.

    Raises:
        ProbeError: ``wrong_model``: the one asked for is not served, or there is none to take.
    """
    shown = ", ".join(listed[:_MOST_MODELS]) or "none"
    if server.model is None and not listed:
        text = f"{server.name} lists no model; name one by model:"
        raise ProbeError(ReasonCode.WRONG_MODEL, text)
    if server.model is not None and listed and server.model not in listed:
        text = f"{server.name} does not serve {server.model!r}; it lists {shown}"
        raise ProbeError(ReasonCode.WRONG_MODEL, text)
    return server.model or listed[0]


async def version_of(client: Client, found: Running) -> str | None:
    """The server's version, as its command or one of its pages tells it; None if none does."""
    if found.version is not None:
        return found.version
    for page in _VERSION_PAGES:
        with contextlib.suppress(Exception):  # a page it does not have
            status, text = await client.get(page)
            told = json.loads(text) if status == 200 else {}
            for key in _VERSION_KEYS:
                if isinstance(told.get(key), str):
                    return client.target.mask(told[key])[:200]
    return None


def key_of(server: Server) -> str | None:
    """
    The API key, from the variable that the definition names.

    Raises:
        ProbeError: ``endpoint_refused``: there is no such variable.
    """
    if server.key_env is None:
        return None
    key = os.environ.get(server.key_env)
    if not key:
        text = (
            f"the variable {server.key_env} is not set for workers; set it where topobench probe "
            "is called, or in the section env:"
        )
        raise ProbeError(ReasonCode.ENDPOINT_REFUSED, text)
    return key


def _models(text: str, wanted: str | None) -> list[str]:
    """The names in a list of models; of those that no name can be, only the one that is wanted."""
    try:
        listed: list[dict[str, Any]] = json.loads(text)["data"]
        names = [m["id"] for m in listed]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    return [
        name
        for name in names
        if isinstance(name, str)
        and (name == wanted or (name.isprintable() and 0 < len(name) <= _LONGEST_NAME))
    ]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def _version(server: Server, env: dict[str, str], folder: Path, kept: Path) -> str | None:
    """The first line that the version command prints."""
    if not server.version:
        return None
    output = kept / "version"
    ended = foreign.run_foreign(
        server.version, env=env, timeout_seconds=_VERSION_SECONDS, stdout_path=output, folder=folder
    )
    lines = foreign.output_text(output, 1 << 20).strip().split("\n", 1)
    return lines[0].strip()[:200] or None if ended.code == 0 else None
