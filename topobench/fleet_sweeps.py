"""What ``topobench sweep --fleet`` does: the sweeps of a fleet, one cluster after the other."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import commands, fleet, fleet_memory, fleet_missed, fleet_spool
from topobench.commands import Outcome
from topobench.errors import ConfigError, StoreError, TopobenchError, UsageError
from topobench.extras import install_line
from topobench.fleet import Fleet, Schedule
from topobench.fleet_memory import Memory, UnderWay
from topobench.fleet_missed import CLOCKS_APART, Missed
from topobench.fleet_ran import FAILED, FAULT, SIGNAL, Ran, checked, exit_code, failed
from topobench.fleet_spool import Brought

if TYPE_CHECKING:
    from rich.console import Console

    from topobench.db.schedules import State

_FLEET = "fleet"
_LATER = "the next sweep of this fleet, in this folder, brings them in by itself and judges them"


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

    What earlier nights spooled is brought in first.

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
    try:
        whole = fleet.load(path)
    except ConfigError as error:
        if due and trigger == "cron" and _was_told(path, error):
            return _silent(path, error, check=check)
        raise
    wanted = fleet.chosen(whole, only)
    if textfile is not None:
        _check_textfile(textfile)
    look = _Look(whole, wanted, due=due, check=check, trigger=trigger, console=console)
    status = None
    try:
        with fleet_memory.alone(path) if due else contextlib.nullcontext(Memory(None)) as memory:
            look.run(memory)
    except UnderWay as error:
        if trigger != "cron":
            raise
        status = str(error)
    outcome = look.outcome(status)
    told = [] if textfile is None else _write_metrics(whole, textfile)
    return replace(outcome, warnings=(*outcome.warnings, *told))


def _silent(path: Path, error: ConfigError, *, check: bool) -> Outcome:
    """What a look gives that could not use its fleet, and said so last time."""
    from topobench.report.fleet_text import render_fleet

    wrong = {"cluster": path.name, "mistakes": list(error.mistakes), "is_news": False}
    data = {"fleet": path.stem, "checked": check, "wrong": [wrong], "is_news": False}
    data |= {"sweeps": [], "missed": [], "spool": []}
    code = exit_code([], check=check, wrong=True)
    return Outcome(data, lambda: render_fleet(data), exit_code=code, status="attention")


class _Look:
    """One call of the command: what it did, in the order in which it is told."""

    def __init__(
        self,
        whole: Fleet,
        wanted: Fleet,
        *,
        due: bool,
        check: bool,
        trigger: str,
        console: Console | None,
    ) -> None:
        self._whole, self._wanted = whole, wanted
        self._due, self._check = due, check
        self._trigger, self._console = trigger, console
        self._wrong: list[dict[str, Any]] = []
        self._missed: list[Missed] = []
        self._spool: list[Brought] = []
        self._ran: list[Ran] = []

    def run(self, memory: Memory) -> None:
        """Tell wrong clusters, bring in what was spooled, look back, then sweep."""
        schedules = self._wanted.schedules
        memory.forget(_FLEET)
        self._wrong = _told_wrong(self._whole, self._wanted, memory)
        self._spool, self._ran = fleet_spool.bring_in(
            self._whole, schedules, check=self._check, memory=memory
        )
        if self._due:
            self._missed = fleet_missed.look_back(schedules, datetime.datetime.now(datetime.UTC))
        for schedule in schedules:
            done = _turn(
                *(schedule, self._trigger, self._console), due=self._due, check=self._check
            )
            if done is not None:
                self._ran.append(_told_once(done, memory) if self._due else done)
            if done is not None and done.exit_code > SIGNAL:
                break

    def outcome(self, status: str | None) -> Outcome:
        """
        What the command gives.

        Args:
            status: In place of ours.
        """
        from topobench.report.fleet_text import render_fleet

        code = exit_code(self._ran, check=self._check, wrong=bool(self._wrong))
        sweeps = [r.told() for r in self._ran]
        told = [*self._missed, *self._spool]
        data = {
            "fleet": self._wanted.name,
            "checked": self._check,
            "sweeps": sweeps,
            "wrong": self._wrong,
            "missed": [m.told() for m in self._missed],
            "spool": [b.told() for b in self._spool],
            "is_news": bool(told) or any(s["is_news"] for s in (*sweeps, *self._wrong)),
        }
        quiet = self._trigger == "cron"
        shown = {
            **data,
            "sweeps": [s for s in sweeps if s["is_news"] or not quiet],
            "wrong": [w for w in self._wrong if w["is_news"] or not quiet],
        }
        said = status or ("nothing due" if not sweeps else "ok" if code == 0 else "attention")
        if self._wrong:
            said = "attention"
        return Outcome(data, lambda: render_fleet(shown), exit_code=code, status=said)


def _check_textfile(path: Path) -> None:
    """Refuse what could not be written after a night of measuring."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(f"--textfile needs the package prometheus-client: {install_line('web')}")
    if not os.access(path.parent, os.W_OK | os.X_OK) or path.is_dir():
        raise UsageError(f"--textfile {path}: its folder must exist and be writable")


def _write_metrics(whole: Fleet, path: Path) -> list[str]:
    """The metrics of every store of a fleet; a warning if they could not be written."""
    from topobench.web import metrics
    from topobench.web.site import Site

    sites = [Site(url) for url in whole.stores]
    more = metrics.of_look([w.cluster for w in whole.wrong], fleet_spool.left())
    try:
        metrics.write_textfile(sites, path, more)
    except TopobenchError as error:
        return [f"{error}; the metrics there stay as they were"]
    finally:
        for site in sites:
            site.close()
    return []


def _told_wrong(whole: Fleet, wanted: Fleet, memory: Memory) -> list[dict[str, Any]]:
    """Clusters with mistakes as the JSON document has them."""
    texts: dict[str, str] = {}
    for wrong in wanted.wrong:  # of one name there may be two
        texts[wrong.cluster] = "\n".join([texts.get(wrong.cluster, ""), *wrong.mistakes])
    news = memory.new_of("wrong", texts, [w.cluster for w in whole.wrong])
    return [
        {"cluster": w.cluster, "mistakes": list(w.mistakes), "is_news": w.cluster in news}
        for w in wanted.wrong
    ]


def _was_told(path: Path, error: ConfigError) -> bool:
    """Whether the last look told the same of a fleet that cannot be used, or the next one will."""
    try:
        with fleet_memory.alone(path) as memory:
            return not memory.is_new(_FLEET, str(error))
    except UnderWay:
        return True


def _told_once(ran: Ran, memory: Memory) -> Ran:
    """A store that is away cannot remember that it was told. That it is back is news, too."""
    about = f"away {ran.schedule.label}"
    if ran.is_away:
        return replace(ran, is_news=memory.is_new(about, ran.message or ""))
    return replace(ran, is_news=memory.forget(about) or ran.is_news)


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
    if state.tried_at > now + CLOCKS_APART:
        return True
    return state.exit_code > SIGNAL or (state.exit_code in (2, 3, 4) and state.sweep is None)


def _turn(
    schedule: Schedule, trigger: str, console: Console | None, *, due: bool, check: bool
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
            tried_at = schedules.begin(store, schedule.cluster, schedule.name, due_at=time)
    except StoreError as error:
        return failed(Ran(schedule, time, is_away=True, is_news=True), error, check=check)
    ran = _swept(Ran(schedule, time), trigger, console)
    findings = dict(state.findings) if state else {}
    if check:
        try:
            ran, findings = checked(ran, findings)
        except TopobenchError as error:
            ran = replace(ran, verdict=3, message=str(error))
    before = state.exit_code if state else None
    changed = ran.exit_code != (before or 0)
    ran = replace(ran, is_news=bool(ran.is_news or changed or ran.new or ran.cleared))
    return _kept(ran, tried_at, findings)


def _kept(ran: Ran, tried_at: datetime.datetime, findings: Mapping[str, str]) -> Ran:
    """Store how a try ended; what was spooled, or cannot be stored now, is judged later."""
    from topobench.db import schedules
    from topobench.db.store import Store

    spooled = ran.spooled
    try:
        with Store.open(ran.schedule.config.store) as store:
            schedules.end(
                *(store, ran.schedule.cluster, ran.schedule.name),
                tried_at=tried_at,
                times=ran.schedule.times.text,
                exit_code=ran.exit_code,
                sweep=ran.sweep,
                message=ran.message,
                findings=findings,
            )
    except StoreError as error:
        spooled = ran.sweep is not None
        ran = replace(ran, message=ran.message or str(error), is_news=True)
    if spooled:
        try:
            fleet_spool.keep_end(ran, tried_at)
        except StoreError as error:
            return replace(ran, message=f"{ran.message}\n{error}")
    return ran


def _swept(ran: Ran, trigger: str, console: Console | None) -> Ran:
    try:
        config = ran.schedule.config
        outcome = commands.probe(config, console=console, trigger=trigger, bring_in=False)
    except TopobenchError as error:
        return failed(ran, error, check=False)
    except Exception:  # a fault with one cluster must not cost the others their night
        return replace(ran, exit_code=FAULT, message=traceback.format_exc())
    return _ended(ran, outcome)


def _ended(ran: Ran, outcome: Outcome) -> Ran:
    """With what became of its sweep, and what happened to the store meanwhile."""
    from topobench.db.spool import FOLDER

    code, found = outcome.exit_code, outcome.data
    spooled = found["store"] == FOLDER
    about_store = outcome.warnings[len(found["sweep"]["warnings"]) :]
    told = [FAILED.get(code), *([*about_store[-1:], _LATER] if spooled else about_store)]
    return replace(
        ran,
        exit_code=code,
        sweep=found["sweep"]["id"],
        counts=found["counts"],
        message="\n".join(filter(None, told)) or None,
        spooled=spooled,
        is_news=bool(about_store),
    )
