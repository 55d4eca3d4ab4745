"""What ``topobench sweep --fleet`` does: the sweeps of a fleet, one cluster after the other."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import commands, fleet, fleet_news, judging
from topobench.commands import Outcome
from topobench.errors import RefusedError, SchemaTooNew, StoreError, TopobenchError, UsageError
from topobench.fleet import Fleet, Schedule

if TYPE_CHECKING:
    from rich.console import Console

    from topobench.db.schedules import State

FAULT = 70
_FAILED = {1: "some cells failed", 3: "nothing was measured"}
_SIGNAL = 128
_CLOCKS_DIFFER = datetime.timedelta(hours=1)
"""More than the clocks of hosts that sweep by turns."""


@dataclass(frozen=True, slots=True)
class Ran:
    """
    One schedule's sweep and its check.

    Args:
        due_at: The time it served; None: asked for by hand.
        exit_code: As ``probe`` gives it.
        sweep: UUID; None: none was begun.
        message: What went wrong.
        verdict: Exit code of the check; None: not checked.
        level: The gravest level of the check.
        is_away: The store could not be opened.
        spooled: What it measured is in the spool and not in the store.
        is_news: Whether anything differs from the last try.
    """

    schedule: Schedule
    due_at: datetime.datetime | None = None
    exit_code: int = 0
    sweep: str | None = None
    message: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    verdict: int | None = None
    level: str | None = None
    is_away: bool = False
    spooled: bool = False
    new: Mapping[str, str] = field(default_factory=dict)
    cleared: Sequence[str] = ()
    is_news: bool = False

    def told(self) -> dict[str, Any]:
        """As the JSON document has it."""
        return {
            "cluster": self.schedule.cluster,
            "schedule": self.schedule.name,
            "due_at": None if self.due_at is None else _text(self.due_at),
            "exit_code": self.exit_code,
            "sweep": self.sweep,
            "message": self.message,
            "counts": dict(self.counts),
            "verdict": self.verdict,
            "level": self.level,
            "new": dict(self.new),
            "cleared": list(self.cleared),
            "is_news": self.is_news,
        }


def sweep(
    path: Path,
    *,
    due: bool,
    check: bool,
    only: str | None,
    trigger: str,
    console: Console | None,
    textfile: Path | None = None,
) -> Outcome:
    """
    Sweep the clusters of a fleet; a cluster that cannot be swept leaves the others alone.

    Args:
        path: fleet.yaml.
        due: Only what is due now and was not done yet.
        check: Judge each sweep; the exit code is then that of ``check``.
        only: ``CLUSTER`` or ``CLUSTER/SCHEDULE``, with commas; None for all.
        trigger: ``cron``: only news is drawn.
        console: Where progress goes; None for none.
        textfile: Where the metrics of all stores go at the end, for Prometheus.

    Raises:
        ConfigError: The file, or one it names, is wrong.
        UsageError: There is no folder for the text file, or a package is missing.
        RefusedError: Another ``sweep --due`` of this fleet is under way (silent for cron).
    """
    wanted = fleet.load(path)
    schedules = fleet.chosen(wanted, only)
    if textfile is not None:
        _check_textfile(textfile)
    quiet = trigger == "cron"
    ran: list[Ran] = []
    try:
        with _alone(path) if due else contextlib.nullcontext() as folder:
            for schedule in schedules:
                done = _turn(schedule, due=due, check=check, trigger=trigger, console=console)
                if done is not None:
                    ran.append(done if folder is None else _told_once(done, folder))
                if done is not None and done.exit_code > _SIGNAL:
                    break
        outcome = _outcome(wanted.name, ran, check=check, quiet=quiet)
    except _UnderWay as error:
        if not quiet:
            raise
        outcome = _outcome(wanted.name, [], check=check, quiet=True, status=str(error))
    told = [] if textfile is None else _write_metrics(wanted, textfile)
    return replace(outcome, warnings=(*outcome.warnings, *told))


def _check_textfile(path: Path) -> None:
    """Refuse what could not be written after a night of measuring."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(
            f"--textfile needs the package prometheus-client: {sys.executable} -m pip install "
            "'topobench[web]'"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK) or path.is_dir():
        raise UsageError(f"--textfile {path}: its folder must exist and be writable")


def _write_metrics(wanted: Fleet, path: Path) -> list[str]:
    """The metrics of every store of a fleet; a warning if they could not be written."""
    from topobench.web import metrics
    from topobench.web.site import Site

    urls = dict.fromkeys([wanted.store, *(s.config.store for s in wanted.schedules)])
    sites = [Site(url) for url in urls]
    try:
        metrics.write_textfile(sites, path)
    except TopobenchError as error:
        return [f"{error}; the metrics there stay as they were"]
    finally:
        for site in sites:
            site.close()
    return []


class _UnderWay(RefusedError):
    """Another process sees to what is due."""


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """
    Only one ``sweep --due`` of a fleet file on this host; freed when its process dies.

    Yields:
        The folder of the lock.
    """
    from topobench.agents.host_lock import HostLock, choose_run_dir, read_holder

    digest = hashlib.blake2b(f"{os.getuid()} {path.resolve()}".encode(), digest_size=8)
    folder = choose_run_dir()[0] / f"fleet-{digest.hexdigest()}"
    lock = HostLock(folder, sweep=f"fleet {path.name}")
    try:
        lock.acquire()
    except RefusedError as error:
        holder = read_holder(folder)
        if not holder:
            raise
        raise _UnderWay(
            f"another sweep --due of {path} is under way (pid {holder.get('pid')} since "
            f"{holder.get('started_at')}); wait for it or end it"
        ) from error
    with lock:
        yield folder


def _told_once(ran: Ran, folder: Path) -> Ran:
    """
    A store that is away cannot remember that it was told, so a file beside the lock does.

    That the store is back is news, too.
    """
    name = f"{ran.schedule.cluster}/{ran.schedule.name}"
    file = folder / f"away-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
    with contextlib.suppress(OSError):  # told too often is better than no sweep
        if not ran.is_away:
            return replace(ran, is_news=ran.is_news or _removed(file))
        if file.exists() and file.read_text(encoding="utf-8") == ran.message:
            return replace(ran, is_news=False)
        file.write_text(ran.message or "", encoding="utf-8")
    return ran


def _removed(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def is_due(state: State | None, time: datetime.datetime | None, *, now: datetime.datetime) -> bool:
    """
    Whether a schedule is to be swept for a time of its expression.

    A try that was killed, interrupted or refused, or that could not begin a sweep, is made
    again until that time is too long ago; a fault of ours is not.
    A try that is to come was made by a clock that was wrong, and counts for nothing.
    """
    if time is None:
        return False
    if state is None or state.tried_at < time or state.exit_code is None:
        return True
    if state.tried_at > now + _CLOCKS_DIFFER:
        return True
    return state.exit_code > _SIGNAL or (state.exit_code in (2, 3, 4) and state.sweep is None)


def _turn(
    schedule: Schedule, *, due: bool, check: bool, trigger: str, console: Console | None
) -> Ran | None:
    """Sweep one schedule if it is its turn; None if it is not."""
    from topobench.db import schedules
    from topobench.db.store import Store

    now = datetime.datetime.now(datetime.UTC)
    time = schedule.times.due(now) if due else None
    if due and time is None:
        return None
    try:
        with Store.open(schedule.config.store) as store:
            state = schedules.of(store, schedule.cluster, schedule.name)
            if due and not is_due(state, time, now=now):
                return None
            schedules.begin(store, schedule.cluster, schedule.name, due_at=time)
    except StoreError as error:
        return _failed(Ran(schedule, time, is_away=True, is_news=True), error, check=check)
    ran = _swept(Ran(schedule, time), trigger, console)
    findings = dict(state.findings) if state else {}
    if check:
        ran, findings = _checked(ran, findings)
    before = state.exit_code if state else None
    changed = ran.exit_code != (before or 0)
    ran = replace(ran, is_news=bool(ran.is_news or changed or ran.new or ran.cleared))
    try:
        with Store.open(schedule.config.store) as store:
            schedules.end(
                store,
                schedule.cluster,
                schedule.name,
                exit_code=ran.exit_code,
                sweep=ran.sweep,
                message=ran.message,
                findings=findings,
            )
    except StoreError as error:
        return replace(ran, message=ran.message or str(error), is_news=True)
    return ran


def _swept(ran: Ran, trigger: str, console: Console | None) -> Ran:
    try:
        outcome = commands.probe(ran.schedule.config, console=console, trigger=trigger)
    except TopobenchError as error:
        return _failed(ran, error, check=False)
    except Exception:  # a fault with one cluster must not cost the others their night
        return replace(ran, exit_code=FAULT, message=traceback.format_exc())
    return _ended(ran, outcome)


def _ended(ran: Ran, outcome: Outcome) -> Ran:
    """With what became of its sweep, and what happened to the store meanwhile."""
    from topobench.db.spool import FOLDER

    code, found = outcome.exit_code, outcome.data
    spooled = found["store"] == FOLDER
    about_store = outcome.warnings[len(found["sweep"]["warnings"]) :]
    told = [_FAILED.get(code), *(about_store[-1:] if spooled else about_store)]
    return replace(
        ran,
        exit_code=code,
        sweep=found["sweep"]["id"],
        counts=found["counts"],
        message="\n".join(filter(None, told)) or None,
        spooled=spooled,
        is_news=bool(about_store),
    )


def _failed(ran: Ran, error: TopobenchError, *, check: bool) -> Ran:
    """The sweep could not be made."""
    code = 3
    if isinstance(error, RefusedError | SchemaTooNew | UsageError):
        code = error.exit_code
    return replace(ran, exit_code=code, message=str(error), verdict=3 if check else None)


def _checked(ran: Ran, before: Mapping[str, str]) -> tuple[Ran, dict[str, str]]:
    """With the verdict on its sweep, and what counts as found from now on."""
    if ran.sweep is None or ran.spooled or ran.exit_code > _SIGNAL:
        return replace(ran, verdict=3), dict(before)
    try:
        outcome = judging.check(ran.schedule.config.store, ran.sweep, policy=ran.schedule.policy)
    except TopobenchError as error:
        return replace(ran, verdict=3, message=str(error)), dict(before)
    found = fleet_news.changes(before, fleet_news.judged(outcome.data))
    judged = replace(
        ran,
        verdict=outcome.exit_code,
        level=outcome.status,
        new=found.new,
        cleared=found.cleared,
    )
    return judged, dict(found.findings)


def exit_code(ran: Sequence[Ran], *, check: bool) -> int:
    """
    Of several sweeps: a signal's first, then the gravest.

    Checked: fail, degraded, not judged, ok. Not checked: a fault of ours, a wrong setting,
    nothing measured, refused, cells failed.
    """
    codes = {r.exit_code for r in ran}
    signals = [code for code in codes if code > _SIGNAL]
    if signals:
        return max(signals)
    order = (2, 1, 3) if check else (FAULT, 2, 3, 4, 1)
    given = {r.verdict for r in ran} if check else codes
    return next((code for code in order if code in given), 0)


def _outcome(
    name: str, ran: Sequence[Ran], *, check: bool, quiet: bool, status: str | None = None
) -> Outcome:
    from topobench.report.fleet_text import render_fleet

    code = exit_code(ran, check=check)
    told = [r.told() for r in ran]
    data = {
        "fleet": name,
        "checked": check,
        "sweeps": told,
        "is_news": any(r.is_news for r in ran),
    }
    shown = {**data, "sweeps": [s for s in told if s["is_news"] or not quiet]}
    said = status or ("nothing due" if not ran else "ok" if code == 0 else "attention")
    return Outcome(data, lambda: render_fleet(shown), exit_code=code, status=said)


def _text(time: datetime.datetime) -> str:
    return time.astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
