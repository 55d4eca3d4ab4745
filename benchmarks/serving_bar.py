"""
The bars of the probe serving: 2,000 requests a second, streamed, on two cores.

The server of the tests runs in a process of its own and answers each request with four chunks.

- ``python benchmarks/serving_bar.py [--rate 2000] [--seconds 60]``: an open loop in five parts.
  Printed: what was answered, the client's lag against its limit, CPU of both, CPU time of a
  request, and the client's memory after each part, which must stay flat.
- ``... versus``: CPU time of a request of our client and of a bare loop of aiohttp that reads the
  same stream and looks at nothing in it, in turn.
- ``... search``: the largest load of a server with 20 slots of 0.4 s. With 60 in flight a request
  waits for two others and takes 1.2 s; with one more some wait for three, over the limit of 1.4 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

import aiohttp  # noqa: E402
import psutil  # noqa: E402

from openai_server import free_port  # noqa: E402
from topobench.probes import serving_client, serving_session  # noqa: E402
from topobench.probes.serving import Serving  # noqa: E402
from topobench.probes.serving_client import Target  # noqa: E402
from topobench.probes.serving_servers import Running  # noqa: E402
from topobench.probes.serving_session import Result  # noqa: E402
from topobench.server_definition import Server  # noqa: E402

PARTS = 5
VERSUS_SECONDS, VERSUS_AT_ONCE, VERSUS_ROUNDS = 5.0, 50, 3
SLOTS, SLOT_SECONDS, LIMIT_SECONDS = 20, 0.4, 1.4


def main() -> None:
    """Load the server, in one of three ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("bar", "versus", "search"), default="bar")
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all windows together")
    given = parser.parse_args()
    port = free_port()
    options: dict[str, object] = {"ttft": 0.05, "tpot": 0.005, "metrics": False}
    if given.what == "search":
        options |= {"ttft": SLOT_SECONDS, "tpot": 0.0, "slots": SLOTS}
    program = str(HERE.parent / "tests" / "openai_server.py")
    with subprocess.Popen([sys.executable, program, str(port), json.dumps(options)]) as server:
        try:
            _wait(port)
            print(f"cores {os.cpu_count()}, load before {os.getloadavg()[0]:.1f}")
            base = f"http://127.0.0.1:{port}"
            if given.what == "versus":
                for _ in range(VERSUS_ROUNDS):
                    print(asyncio.run(_versus(base)))
            elif given.what == "search":
                print(asyncio.run(_searched(base)))
            else:
                for part in range(PARTS):
                    _part(part, base, server, given)
        finally:
            server.terminate()


def _wait(port: int) -> None:
    """Until the server takes connections."""
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise SystemExit("the test server did not start")


def _part(
    number: int, base: str, server: subprocess.Popen[bytes], given: argparse.Namespace
) -> None:
    probe = Serving(
        arrivals="poisson",
        rate=given.rate,
        window=given.seconds / PARTS,
        ramp=2.0,
        input_tokens="32",
        output_tokens="4",
        requests=1,
    )
    watched = psutil.Process(server.pid)
    own, theirs, began = time.process_time(), sum(watched.cpu_times()[:2]), time.perf_counter()
    result = asyncio.run(_measure(probe, base))
    seconds = time.perf_counter() - began
    (window,) = result.windows
    client = (time.process_time() - own) / seconds
    served = (sum(watched.cpu_times()[:2]) - theirs) / seconds
    rss = psutil.Process().memory_info().rss / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"part {number}: {window.answered / window.seconds:.0f} requests/s of {given.rate:.0f}, "
        f"{window.n} requests, {window.error_count} failed, lag P99 "
        f"{window.health.lag_seconds * 1e3:.1f} ms (limit {probe.lag_limit * 1e3:.0f} ms), client "
        f"{client:.0%} of a core ({window.health.cpu_ratio:.0%} in the window, "
        f"{1e6 * window.health.cpu_ratio * window.seconds / max(1, window.n):.0f} us a request), "
        f"server {served:.0%}, memory {rss:.0f} MB (peak {peak:.0f}), "
        f"{'valid' if window.valid else '; '.join(text for _, text in window.faults)}"
    )


async def _measure(probe: Serving, base: str) -> Result:
    target, found = Target(base, ""), Running(base)
    return await serving_session.measure(probe.job(), Server("bar", url=base), found, target)


async def _versus(base: str) -> str:
    """One round of both clients: CPU time of a request."""
    body = {"prompt": list(range(100, 132)), "max_tokens": 4, "model": "tiny", "stream": True}
    async with serving_client.opened(Target(base, "tiny")) as client:

        async def ours() -> None:
            served = client.new(None, 32, 4)
            await client.ask(served, json.dumps(body["prompt"]))

        mine = await _cpu_of(ours)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:

        async def theirs() -> None:
            async with session.post(f"{base}/v1/completions", json=body) as response:
                async for _ in response.content.iter_any():
                    pass

        other = await _cpu_of(theirs)
    return f"ours {mine:.0f} us a request, aiohttp {other:.0f} us, ratio {mine / other:.2f}"


async def _cpu_of(request: Callable[[], Awaitable[None]]) -> float:
    """Microseconds of CPU time that one request of this client takes, of many at once."""
    count, until = 0, time.perf_counter() + VERSUS_SECONDS

    async def again() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await request()
            count += 1

    await request()
    spent = time.process_time()
    await asyncio.gather(*(again() for _ in range(VERSUS_AT_ONCE)))
    return (time.process_time() - spent) / count * 1e6


async def _searched(base: str) -> str:
    """A search, and what the server would bear."""
    probe = Serving(
        mode="search",
        limit=LIMIT_SECONDS,
        window=8.0,
        ramp=2.0,
        input_tokens="32",
        output_tokens="4",
        lag_limit=0.02,
    )
    result = await _measure(probe, base)
    search = result.search
    assert search is not None
    truth = SLOTS * int(LIMIT_SECONDS / SLOT_SECONDS)
    return (
        f"found {search.best} of {truth:g} ({search.ended}), first over {search.first_over}, in "
        f"{search.windows} windows: "
        + ", ".join(f"{w.load:g} {w.p99 or 0:.2f} s" for w in result.windows)
    )


if __name__ == "__main__":
    main()
