"""The bodies of ``check`` and ``ack``: store in, :class:`Outcome` out."""

from __future__ import annotations

import datetime
import difflib
import getpass
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import policy as policies
from topobench.commands import Outcome
from topobench.errors import NotFound, UsageError
from topobench.verdict_words import SEVERITY, Evidence, Judgement, Level, plain, worst

if TYPE_CHECKING:
    from topobench.db.evidence import Loaded
    from topobench.policy import Policy

_CODES = {Level.DEGRADED: 1, Level.FAIL: 2, Level.UNKNOWN: 3}
_MOST_NAMED = 10
Acks = Mapping[str, Mapping[str, Any]]


def print_policy(file: Path | None) -> Outcome:
    """The rules: the package's file with its comments, or what a user's file makes of them."""
    rules = asdict(policies.load(file))
    text = "".join(f"{key}: {value}\n" for key, value in rules.items())
    shown = policies.default_text() if file is None else text
    return Outcome({"policy": rules}, lambda: shown.rstrip("\n"))


def check(
    store_url: str, sweep: str = "latest", *, as_of: str | None = None, policy: Path | None = None
) -> Outcome:
    """
    Judge the hosts of a stored sweep and store the verdicts.

    Args:
        sweep: UUID, unique beginning, or ``latest``.
        as_of: Nothing younger counts; None: the end of the sweep.
        policy: Rules in place of single ones of ours.
    """
    rules = policies.load(policy)
    from topobench.db import evidence, verdicts
    from topobench.db.store import Store
    from topobench.report.verdict_text import render_check
    from topobench.verdict import judge

    with Store.open(store_url, create=False) as store:
        loaded = evidence.load(store, sweep, as_of, rules)
        judgement = judge(loaded.evidence, rules)
        digest = inputs_digest(loaded.evidence)
        verdicts.put(store, loaded, judgement, policy_version=rules.version, digest=digest)
        acks = active(verdicts.acknowledgements(store), loaded.cluster, loaded.evidence.as_of)
    data = check_document(judgement, loaded.evidence, rules, acks, digest)
    data["sweep"], data["cluster"] = loaded.sweep, loaded.cluster
    data["synthetic"] = loaded.synthetic
    warnings = [*_of_sweep(loaded), *_warnings(loaded.evidence, rules)]
    return Outcome(
        data,
        lambda: render_check(data, warnings),
        exit_code=exit_code(judgement, acks),
        status=_gravest(judgement, acks).value,
        warnings=warnings,
    )


def check_document(
    judgement: Judgement, evidence: Evidence, rules: Policy, acks: Acks, digest: str
) -> dict[str, Any]:
    """``data`` of ``topobench check --format json``, without the sweep."""
    topologies = {h.key: h.topology for h in evidence.hosts}
    subjects = []
    for subject in judgement.subjects:
        told = plain(subject)
        topology = topologies[subject.host]
        known = {g.key: g.name for g in topology.gpus} if topology else {}
        keys = (subject.device or "").split(",")
        told["device_name"] = "-".join(known.get(k, k) for k in keys) if subject.device else None
        told["acknowledged"] = acks.get(subject.host)
        subjects.append(told)
    return {
        "as_of": evidence.as_of,
        "policy": rules.version,
        "inputs_digest": digest,
        "subjects": subjects,
        "incidents": [
            {"class": i.group, "hosts": list(i.hosts), "of": i.of, "text": i.text}
            for i in judgement.incidents
        ],
    }


def exit_code(judgement: Judgement, acks: Acks) -> int:
    """
    0 ok (also watch, learning), 1 degraded or an incident, 2 fail, 3 unknown.

    Hosts that are acknowledged do not count. Anything found beats what could not be judged;
    a sweep without a host judges nothing.
    """
    return _CODES.get(_gravest(judgement, acks), 0)


def _gravest(judgement: Judgement, acks: Acks) -> Level:
    if not judgement.subjects:
        return Level.UNKNOWN
    levels = [s.level for s in judgement.subjects if s.host not in acks]
    if judgement.incidents:
        levels.append(Level.DEGRADED)
    gravest = worst(levels or [Level.OK])
    if SEVERITY[gravest] < SEVERITY[Level.DEGRADED] and Level.UNKNOWN in levels:
        return Level.UNKNOWN
    return gravest


def _of_sweep(loaded: Loaded) -> Iterator[str]:
    """What sets this sweep apart from one that was measured here, to its end."""
    if loaded.status == "running":
        yield "the sweep is running: its hosts are judged by what it measured so far"
    elif loaded.status != "done":
        yield f"the sweep is {loaded.status}: its hosts are judged by what it did measure"
    if loaded.source != "probe":
        yield f"these are another tool's results ({loaded.source})"


def _warnings(evidence: Evidence, rules: Policy) -> list[str]:
    """Hosts that nights before had and this sweep has not: nobody judged them."""
    oldest = evidence.as_of_day - rules.stale_days
    missing = [h.name for h in evidence.hosts if not h.is_subject and (h.seen_day or 0) >= oldest]
    if not missing:
        return []
    named = ", ".join(missing[:_MOST_NAMED]) + (" ..." if len(missing) > _MOST_NAMED else "")
    return [
        f"{len(missing)} of the cluster's hosts that were measured in the last {rules.stale_days} "
        f"days are not in this sweep, and are not judged: {named}"
    ]


def inputs_digest(evidence: Evidence) -> str:
    """32 hexadecimal digits, equal for equal evidence."""
    state = hashlib.blake2b(digest_size=16)
    for part in (evidence.as_of, evidence.hosts, evidence.tracks):
        state.update(repr(part).encode("utf-8", "surrogatepass"))
    for array in (evidence.days, evidence.values, evidence.stretches):
        state.update(array.tobytes())
    return state.hexdigest()


def active(acks: Sequence[Mapping[str, Any]], cluster: str, as_of: str) -> dict[str, Any]:
    """The newest acknowledgement of each host, by its key, where that has not ended by then."""
    return {
        ack["host"]: {k: ack[k] for k in ("ticket", "text", "author", "expires_at")}
        for ack in _newest(acks)
        if ack["cluster"] == cluster and ack["expires_at"] > as_of
    }


def _newest(acks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest of each host: a later one takes the place of those before, also to end sooner."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for ack in acks:
        found.setdefault((ack["cluster"], ack["host"]), ack)
    return list(found.values())


def ack(
    store_url: str,
    host: str,
    *,
    ticket: str,
    until: str,
    text: str = "",
    cluster: str | None = None,
    now: datetime.datetime | None = None,
) -> Outcome:
    """
    Acknowledge a host: until then its level does not decide the exit code of ``check``.

    Args:
        host: Key, name or address of a stored host.
        until: ``2026-12-24`` (its end, UTC) or a time; must lie ahead.
        cluster: Where several clusters have a host of that name.
        now: The present; for tests.

    Raises:
        UsageError: An end that is none or has passed, no ticket, or several hosts so called.
        NotFound: No such host is stored.
    """
    from topobench.db import verdicts
    from topobench.db.store import Store

    present = now or datetime.datetime.now(datetime.UTC)
    expires_at = _end(until, present)
    if not ticket.strip():
        raise UsageError("--ticket is empty; name the ticket that deals with the host")
    with Store.open(store_url, create=False) as store:
        found = [h for h in verdicts.hosts_named(store, host) if cluster in (None, h.cluster)]
        if not found:
            known = difflib.get_close_matches(host, verdicts.host_names(store), n=3, cutoff=0.3)
            hint = f"; did you mean {', '.join(known)}?" if known and cluster is None else ""
            where = "" if cluster is None else f" in a cluster {cluster!r}"
            raise NotFound(f"no host {host!r} is stored{where}{hint}")
        if len(found) > 1:
            told = ", ".join(f"{h.name} ({h.key}) in {h.cluster}" for h in found)
            raise UsageError(
                f"several hosts are called {host!r}: {told}; give --cluster or the key"
            )
        verdicts.acknowledge(
            store,
            host_id=found[0].id,
            ticket=ticket.strip(),
            text=text,
            author=_author(),
            expires_at=expires_at,
        )
        every = verdicts.acknowledgements(store)
    return _acks(every[:1], present)


def acks(store_url: str, *, now: datetime.datetime | None = None) -> Outcome:
    """Every acknowledgement, newest first; ended ones, too."""
    from topobench.db import verdicts
    from topobench.db.store import Store

    with Store.open(store_url, create=False, read_only=True) as store:
        every = verdicts.acknowledgements(store)
    return _acks(every, now or datetime.datetime.now(datetime.UTC))


def _acks(every: Sequence[Mapping[str, Any]], now: datetime.datetime) -> Outcome:
    from topobench.db.columns import time_text
    from topobench.report.verdict_text import render_acks

    standing = [a for a in _newest(every) if a["expires_at"] > time_text(now)]
    told = [{**a, "active": a in standing} for a in every]
    return Outcome({"acks": told}, lambda: render_acks(told))


def _end(text: str, now: datetime.datetime) -> str:
    from topobench.db.columns import time_text

    wanted = f"{text}T23:59:59.999999+00:00" if len(text) == 10 else text
    try:
        moment = datetime.datetime.fromisoformat(wanted)
    except ValueError as error:
        raise UsageError(
            f"--until {text!r} is no date; write 2026-12-24 or 2026-12-24T06:00:00Z"
        ) from error
    if moment.tzinfo is None:
        raise UsageError(f"--until {text!r} has no zone; write it in UTC with a Z at its end")
    if moment <= now:
        raise UsageError(f"--until {text} has passed; an acknowledgement ends in the future")
    return time_text(moment)


def _author() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"
