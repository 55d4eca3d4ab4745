"""
An OpenAI-compatible server with set times and set faults, for what tests a client of one.

It streams, counts tokens exactly, logs when it really sent what, and can queue requests for a
number of slots. As a program: ``python openai_server.py PORT OPTIONS_JSON``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Options:
    """
    How the server behaves.

    Args:
        ttft: Median seconds to the first token; ``spread`` is the sigma of its logarithm.
        tpot: Seconds of each further token; 0 sends all of them at once.
        slots: Requests served at once, the others wait in order; 0: all.
        stall_at: Seconds after the first request at which nothing is begun for ``stall``.
        fault: What goes wrong, with probability ``share``, after the first ``spared`` requests.
        overhead: Tokens counted on top of the prompt's.
        cached: Share of each prompt told to come from a cache.
        slow_start: Seconds until it is ready.
        key: That requests must carry; of a program, ``key_env`` names its variable.
        open_list: The list of models needs no key.
        listed: Status of the list of models.
    """

    ttft: float = 0.01
    spread: float = 0.0
    tpot: float = 0.001
    slots: int = 0
    stall_at: float = -1.0
    stall: float = 0.0
    fault: str = ""
    share: float = 1.0
    spared: int = 0
    overhead: int = 0
    cached: float = 0.0
    slow_start: float = 0.0
    key: str = ""
    key_env: str = ""
    open_list: bool = False
    listed: int = 200
    model: str = "tiny"
    refused: tuple[str, ...] = ()
    metrics: bool = True
    seed: int = 1


@dataclass
class Log:
    """
    What it did: headers, bodies and prompts of requests, and what their answers really took.

    Args:
        times: Begin, seconds to the first token, seconds to the last, as they ended.
    """

    times: list[tuple[float, float, float]] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


class Server:
    """The application; one event loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.log = Log()
        self.keep = True
        self._rng = random.Random(options.seed)
        self._slots = asyncio.Semaphore(options.slots or 1 << 30)
        self._began = time.monotonic()
        self._first: float | None = None
        self._waiting = self._queried = self._asked = 0
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/version", self.version)
        self.app.router.add_get("/metrics", self.metrics)
        self.app.router.add_post("/v1/completions", self.complete)
        self.app.router.add_post("/v1/chat/completions", self.complete)

    async def models(self, request: web.Request) -> web.Response:
        if time.monotonic() - self._began < self.options.slow_start:
            return web.Response(status=503)
        if not self.options.open_list and (refusal := self._unauthorised(request)):
            return refusal
        return web.json_response({"data": [{"id": self.options.model}]}, status=self.options.listed)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "1.2.3"})

    async def metrics(self, _: web.Request) -> web.Response:
        if not self.options.metrics:
            return web.Response(status=404)
        hits = self._queried * self.options.cached
        text = (
            f'vllm:num_requests_waiting{{model_name="tiny"}} {self._waiting}\n'
            f"vllm:prefix_cache_queries_total {self._queried}\n"
            f"vllm:prefix_cache_hits_total {hits}\n"
        )
        return web.Response(text=text)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        began = time.perf_counter()
        if refusal := self._unauthorised(request):
            return refusal
        body = json.loads(await request.read())
        if self.keep:
            self.log.bodies.append(body)
            self.log.traces.append(request.headers.get("traceparent", ""))
        if unknown := [k for k in self.options.refused if k in body]:
            text = f"unknown {unknown}; use max_completion_tokens"
            return web.json_response({"error": text}, status=400)
        if body["model"] != self.options.model:
            return web.json_response({"error": "no such model"}, status=404)
        if "ids" in self.options.refused and isinstance(body.get("prompt"), list):
            return web.json_response({"error": "no token ids"}, status=422)
        self._asked += 1
        unlucky = self._asked > self.options.spared and self._rng.random() < self.options.share
        fault = self.options.fault if unlucky else ""
        if fault.startswith("http_"):
            return web.json_response({"error": "refused"}, status=int(fault[5:]))
        if fault == "not_streaming":
            return web.json_response({"choices": [{"text": "hello"}]})
        self._waiting += 1
        await self._slots.acquire()
        self._waiting -= 1
        try:
            return await self._stream(request, body, fault, began)
        except ConnectionError:  # the client went away
            return web.Response(status=499)
        finally:
            self._slots.release()

    async def _stream(
        self, request: web.Request, body: dict[str, Any], fault: str, began: float
    ) -> web.StreamResponse:
        chat = "messages" in body
        wanted = int(body.get("max_tokens") or body["max_completion_tokens"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat:
            await response.write(_event({"choices": [{"delta": {"role": "assistant"}}]}))
        await asyncio.sleep(self._until_first())
        first = time.perf_counter() - began
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
            return response
        if fault == "malformed":
            await response.write(b"data: {broken\n\n")
            return response
        if fault == "server_error":
            given = request.headers.get("Authorization")
            await response.write(_event({"error": f"no room for {given}"}))
            return response
        if fault == "silent":
            await asyncio.sleep(3600)
        if self.options.tpot == 0 and fault != "endless":
            await response.write(_event(_token(chat)) * wanted)
        else:
            await self._tokens(response, chat, 1 << 40 if fault == "endless" else wanted)
        if fault == "breaks_off":
            return response
        told = 3 * wanted if fault == "wrong_usage" else wanted
        usage = self._usage(body, told)
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        if self.keep:
            self.log.times.append((began, first, time.perf_counter() - began))
        return response

    async def _tokens(self, response: web.StreamResponse, chat: bool, count: int) -> None:
        event = _event(_token(chat))
        await response.write(event)
        due = time.perf_counter()
        for _ in range(count - 1):
            due += self.options.tpot
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await response.write(event)

    def _until_first(self) -> float:
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        wait = self.options.ttft * self._rng.lognormvariate(0.0, self.options.spread)
        since = now - self._first
        if 0 <= self.options.stall_at <= since < self.options.stall_at + self.options.stall:
            wait += self.options.stall_at + self.options.stall - since
        return wait

    def _usage(self, body: dict[str, Any], told: int) -> dict[str, Any]:
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        if self.keep:
            self.log.prompts.append(prompt)
        count = len(prompt.split() if isinstance(prompt, str) else prompt) + self.options.overhead
        self._queried += count
        usage: dict[str, Any] = {"prompt_tokens": count, "completion_tokens": told}
        if self.options.cached and not self.options.metrics:
            usage["prompt_tokens_details"] = {"cached_tokens": round(self.options.cached * count)}
        return usage

    def _unauthorised(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if not self.options.key or given == f"Bearer {self.options.key}":
            return None
        return web.json_response({"error": f"Incorrect API key provided: {given}"}, status=401)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _token(chat: bool) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": " a"}} if chat else {"text": " a"}]}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def serve(server: Server, port: int, tls: ssl.SSLContext | None = None) -> web.AppRunner:
    runner = web.AppRunner(server.app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, backlog=4096).start()
    return runner


async def stop(runner: web.AppRunner) -> None:
    """End the server, streams without an end too, and let go of every connection."""
    await runner.cleanup()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0.05)  # closed transports are told to the loop in turns of their own


@contextlib.contextmanager
def serving(options: Options, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, Server]]:
    """The server in a thread of this process; its address and what it logged."""
    port, started, loop = free_port(), threading.Event(), asyncio.new_event_loop()
    made: list[Server] = []
    stopping: list[asyncio.Event] = []

    async def main() -> None:
        made.append(Server(options))
        stopping.append(asyncio.Event())
        runner = await serve(made[0], port, tls)
        started.set()
        await stopping[0].wait()
        await stop(runner)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}", made[0]
    finally:
        loop.call_soon_threadsafe(stopping[0].set)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


async def _program(port: int, options: Options) -> None:
    server = Server(options)
    server.keep = False
    await serve(server, port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "--version":
        sys.stdout.write("test server 4.5.6\n")
    else:
        given = Options(**json.loads(sys.argv[2]))
        given.key = os.environ.get(given.key_env, "")
        asyncio.run(_program(int(sys.argv[1]), given))
