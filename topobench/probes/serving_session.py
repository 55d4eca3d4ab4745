"""First contact with a server, then the loads that a cell asks for, each cut into windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench.errors import ProbeError
from topobench.probes import serving_client, serving_facts, serving_servers
from topobench.probes.serving_client import Client, Target
from topobench.probes.serving_level import Level, Shape
from topobench.probes.serving_load import Prompts, Scale
from topobench.probes.serving_search import Search, Seen
from topobench.probes.serving_servers import Running
from topobench.probes.serving_stream import RequestFailed
from topobench.probes.serving_windows import Window
from topobench.reading import ReasonCode
from topobench.server_definition import Server

MEASURE = "measure"
_SMALL, _LARGE = 24, 88
"""Units of the two prompts by which it is learned how a server counts."""
_FIRST_TOKENS = 4
_NEW_LENGTH = "max_completion_tokens"
"""Some chat servers take it in place of ``max_tokens``, and name it as they refuse that."""
_REFUSALS = frozenset({"http_400", "http_415", "http_422", "http_501"})
"""Of a form of request that a server does not take."""


@dataclass(frozen=True, slots=True)
class Contact:
    """
    A server that streamed an answer, and how it is to be asked.

    Args:
        facts: It has a page of metrics that says something known.
        told: For the run's conditions.
    """

    client: Client
    shape: Shape
    facts: bool
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """
    The windows of a cell, in the order measured.

    Args:
        traces: See :class:`Client`.
        search: How the search ended; None in other modes.
    """

    windows: tuple[Window, ...]
    told: Mapping[str, Any]
    traces: int
    search: Search | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """
    What a cell asks of a server.

    Args:
        prompts: ``auto``, ``ids`` or ``words``.
        ignore_eos: Ask for answers of the whole length.
        loads: Of a ladder, in turn, each in so many ``windows``; empty for a search.
        search: Loads are found by it.
    """

    shape: Shape
    prompts: str
    ignore_eos: bool
    loads: Sequence[float]
    windows: int
    search: Search | None = None


async def measure(job: Job, server: Server, found: Running, target: Target) -> Result:
    """
    Meet a server and load it.

    Raises:
        ProbeError: ``no_endpoint``, ``tls_error``, ``endpoint_refused``, ``wrong_model``,
            ``not_streaming``, ``endless_stream``, ``deadline``, ``crashed``, ``wrong_data``.
    """
    async with serving_client.opened(target) as client:
        contact = await _meet(job, server, found, client)
        if job.search is None:
            windows = await _ladder(contact, job, found)
        else:
            windows = await _search(contact, job.search, found)
        return Result(tuple(windows), contact.told, contact.client.traces, job.search)


async def _ladder(contact: Contact, job: Job, found: Running) -> list[Window]:
    windows = []
    for load in job.loads:
        level = Level(contact.client, contact.shape, load, facts=contact.facts)
        windows += await level.windows(MEASURE, job.windows)
        found.check()
    return windows


async def _search(contact: Contact, search: Search, found: Running) -> list[Window]:
    windows: list[Window] = []
    while (step := search.next()) is not None:
        level = Level(contact.client, contact.shape, step.load, facts=contact.facts)
        new = await level.windows(step.purpose, step.windows)
        found.check()
        search.tell(step, [_seen(w) for w in new])
        windows += new
    return windows


def _seen(window: Window) -> Seen:
    ended = max(1, window.flow.ended)
    return Seen(
        meets=window.meets,
        p99=window.p99,
        e2e=window.flow.ended_seconds / ended,
        rate=window.answered / window.seconds if not window.open_loop else _ended_rate(window),
    )


def _ended_rate(window: Window) -> float:
    """Of an open loop: requests that ended inside the window; those due in it may end later."""
    return window.flow.ended / window.seconds


async def _meet(job: Job, server: Server, found: Running, client: Client) -> Contact:
    """Learn a server's model, version, way to count, and whether it streams."""
    try:
        listed = await serving_servers.ready(client, server, found)
        client = client.asking(model=serving_servers.model_of(server, listed))
        client, as_ids, scale = await _agree(job, client)
    except ProbeError as error:
        raise type(error)(error.code, client.target.mask(error.text)) from None
    except Exception as error:
        found.check()
        # The log shows causes, and what they quote of the server may be a part of the key.
        raise serving_client.explained(error, client.target) from None
    version = await serving_servers.version_of(client, found)
    facts = await _facts(client)
    told = {
        "name": server.name,
        "address": found.base,
        "argv": list(found.argv),
        "arguments": dict(server.arguments),
        "model": client.target.mask(client.target.model),
        "version": version,
        "prompts": "ids" if as_ids else "words",
        "ignore_eos": bool(client.target.body.get("ignore_eos")),
        "tokens_from": "server" if scale.known else "chunks",
        "metrics_page": facts,
    }
    shape = replace(job.shape, scale=scale, as_ids=as_ids)
    return Contact(client, shape, facts, told)


async def _agree(job: Job, client: Client) -> tuple[Client, bool, Scale]:
    """The first form of request that the server takes, and how it counts the tokens of prompts."""
    ids_allowed = client.target.api == "completions" and job.prompts != "words"
    forms = [(True, True)] * ids_allowed + [(False, True)] * (job.prompts != "ids")
    forms += [(as_ids, False) for as_ids, _ in forms]
    if not job.ignore_eos:
        forms = forms[len(forms) // 2 :]
    try:
        return await _first_taken(job, client, forms)
    except RequestFailed as error:
        if client.target.api != "chat" or _NEW_LENGTH not in str(error):
            raise
    return await _first_taken(job, client.asking(length_field=_NEW_LENGTH), forms)


async def _first_taken(
    job: Job, client: Client, forms: Sequence[tuple[bool, bool]]
) -> tuple[Client, bool, Scale]:
    """Of forms of a request, each whether it has token ids and whether it ignores ends."""
    refused: RequestFailed | None = None
    for as_ids, ignore_eos in forms:
        asking = client.asking(body={"ignore_eos": True} if ignore_eos else {})
        try:
            return asking, as_ids, await _scale(job.shape, asking, as_ids=as_ids)
        except RequestFailed as error:
            if error.kind not in _REFUSALS:
                raise
            refused = error
    assert refused is not None
    raise refused


async def _scale(shape: Shape, client: Client, *, as_ids: bool) -> Scale:
    """How many tokens the server counts for prompts of two lengths."""
    prompts = Prompts(as_ids=as_ids, vocabulary=shape.vocabulary, nonce=0)
    counted = []
    for units in (_SMALL, _LARGE):
        served = client.new(None, units, _FIRST_TOKENS)
        await client.ask(served, prompts.make(units))
        if served.input_tokens is None:
            return Scale()
        counted.append((units, served.input_tokens))
    try:
        return Scale.between(counted[0], counted[1])
    except ValueError as error:
        text = f"the server counts prompts in a way that cannot be: {error}"
        raise ProbeError(ReasonCode.WRONG_DATA, text) from error


async def _facts(client: Client) -> bool:
    try:
        status, text = await client.get("/metrics")
    except Exception:  # a page that stands beside; without it there is less to tell
        return False
    return status == 200 and bool(serving_facts.read(text))
