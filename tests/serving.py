"""A web server of the tests' own: the real command in a process, and questions to it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Answer:
    """What the server said; header names in lower case."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[str]

    def ask(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        method: str | None = None,
    ) -> Answer:
        """One request; redirects are not followed, errors are answers."""
        request = urllib.request.Request(
            self.url + path, data=data, headers=dict(headers or {}), method=method
        )
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return _answer(answer.status, answer.read(), dict(answer.headers.items()))
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.read(), dict(error.headers.items()))

    def resident_bytes(self) -> int:
        """Memory that it holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


def _answer(status: int, body: bytes, headers: Mapping[str, str]) -> Answer:
    found = {k.lower(): v for k, v in headers.items()}
    return Answer(status, body.decode("utf-8", "replace"), found)


@contextlib.contextmanager
def served(store: str, *flags: str) -> Iterator[Served]:
    """
    ``topobench serve`` on a free port of this host, ended by SIGTERM.

    Raises:
        AssertionError: It did not come up, or did not end with 0.
    """
    command = [sys.executable, "-m", "topobench", "serve", "--store", store, "--port", "0", *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"serving (http://\S+)", line)
        assert found is not None, line + process.stderr.read()
        yield Served(found[1], process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait(timeout=30)
