"""
The bar of the probe serving: 2,000 requests a second, streamed, on two cores.

Run: python benchmarks/serving_bar.py [--rate 2000] [--seconds 60]. The server of the tests runs in
a process of its own and answers each request with four chunks; the client offers an open loop.
Printed: what was answered, the client's lag against its limit, CPU of both, and the client's memory
after each part of the load, which must stay flat.
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
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

import psutil  # noqa: E402

from openai_server import free_port  # noqa: E402
from topobench.probes import serving_session  # noqa: E402
from topobench.probes.serving import Serving  # noqa: E402
from topobench.probes.serving_client import Target  # noqa: E402
from topobench.probes.serving_servers import Running  # noqa: E402
from topobench.probes.serving_session import Result  # noqa: E402
from topobench.server_definition import Server  # noqa: E402

PARTS = 5


def main() -> None:
    """Load the server in parts of one window each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all windows together")
    given = parser.parse_args()
    port = free_port()
    options = {"ttft": 0.05, "tpot": 0.005, "metrics": False}
    program = str(HERE.parent / "tests" / "openai_server.py")
    with subprocess.Popen([sys.executable, program, str(port), json.dumps(options)]) as server:
        try:
            _wait(port)
            print(f"cores {os.cpu_count()}, load before {os.getloadavg()[0]:.1f}")
            for part in range(PARTS):
                _part(part, f"http://127.0.0.1:{port}", server, given)
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
        f"{client:.0%} of a core ({window.health.cpu_ratio:.0%} in the window), server "
        f"{served:.0%}, memory {rss:.0f} MB (peak {peak:.0f}), "
        f"{'valid' if window.valid else '; '.join(text for _, text in window.faults)}"
    )


async def _measure(probe: Serving, base: str) -> Result:
    target, found = Target(base, ""), Running(base)
    return await serving_session.measure(probe.job(), Server("bar", url=base), found, target)


if __name__ == "__main__":
    main()
