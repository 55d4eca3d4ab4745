"""Brings in what earlier nights of a fleet spooled, and judges each as its own night."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench.errors import StoreError, StoreUnreachable, TopobenchError
from topobench.fleet import Fleet, Schedule
from topobench.fleet_memory import Memory
from topobench.fleet_ran import FAILED, Ran, checked

if TYPE_CHECKING:
    from topobench.db.spool import Call
    from topobench.db.store import Store


@dataclass(frozen=True, slots=True)
class Brought:
    """
    What became of the spooled files of one store.

    Args:
        store: Password masked; None: of files that no store or schedule of the fleet is named by.
        files: That were read.
        stored: Runs that are new.
        problems: What did not come in, and why, that was not told before.
    """

    store: str | None
    files: int = 0
    stored: int = 0
    already_stored: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether anything is to be told."""
        return bool(self.stored or self.already_stored or self.problems)

    def told(self) -> dict[str, Any]:
        """As the JSON document has it."""
        return {
            "store": self.store,
            "files": self.files,
            "stored": self.stored,
            "already_stored": self.already_stored,
            "problems": list(self.problems),
        }


def bring_in(
    whole: Fleet, schedules: Sequence[Schedule], *, check: bool, memory: Memory
) -> tuple[list[Brought], list[Ran]]:
    """
    Bring in what was spooled in this folder for the stores of some schedules.

    Of a store that is away nothing is said: a sweep that is due says that it is.

    Returns:
        What became of it, and each sweep of a schedule that came in, with its verdict.
    """
    folder = _folder()
    brought: list[Brought] = []
    ran: list[Ran] = []
    if folder.is_dir():
        for url in dict.fromkeys(s.config.store for s in schedules):
            importing = _Importing(url, whole.schedules, check, ran)
            brought += filter(None, [importing.run(folder, memory)])
        brought += _left_over(folder, whole, memory)
    return [b for b in brought if b.is_news], ran


def left() -> dict[str, int]:
    """Files of the spool in this folder that are in no store: ``waiting``, ``broken``."""
    from topobench.db import spool

    files = spool.files_of(_folder())
    found = Counter("broken" if spool.problems_told(f) else "waiting" for f in files)
    return {state: found[state] for state in ("waiting", "broken")}


def keep_end(ran: Ran, tried_at: datetime.datetime) -> None:
    """
    Spool the end of a try, so that its sweep is judged once it is in the store.

    Raises:
        StoreUnreachable: The spool cannot be written to, either.
    """
    from topobench.db.columns import time_text
    from topobench.db.spool import END_SCHEDULE, Spool

    end = {
        "cluster": ran.schedule.cluster,
        "schedule": ran.schedule.name,
        "tried_at": time_text(tried_at),
        "times": ran.schedule.times.text,
        "exit_code": ran.exit_code,
        "sweep": ran.sweep,
        "message": FAILED.get(ran.exit_code),  # that the store was away is told by then
    }
    with Spool(_folder(), f"{ran.sweep}-schedule", url=ran.schedule.config.store) as spool:
        spool.append(END_SCHEDULE, end)


def _folder() -> Path:
    from topobench.db.spool import FOLDER

    return Path(FOLDER)


@dataclass(frozen=True, slots=True)
class _Importing:
    """An import into one store; what it judges goes to ``ran``."""

    url: str
    schedules: Sequence[Schedule]
    check: bool
    ran: list[Ran]

    def run(self, folder: Path, memory: Memory) -> Brought | None:
        """Bring every file in that is of this store; None: there is none, or the store is away."""
        from topobench.db import spool
        from topobench.db.engine import mask_url
        from topobench.db.spool_import import import_files
        from topobench.db.store import Store

        own = (None, *((s.cluster, s.name) for s in self.schedules))
        files = [f for f in spool.files_for(folder, self.url) if spool.schedule_told(f) in own]
        if not files:
            return None
        before = {line for f in files for line in spool.problems_told(f).splitlines()}
        about = f"spool of {mask_url(self.url)}"
        try:
            store = Store.open(self.url)
        except StoreError:
            return None
        with store:
            try:
                found = import_files(store, folder, files, lambda c: self._ended(store, c))
            except StoreError as error:
                stopped = f"{error}; the rest is brought in at the next look"
                told = (stopped,) if memory.is_new(about, stopped) else ()
                return Brought(mask_url(self.url), problems=told)
        memory.forget(about)
        problems = tuple(p for p in found.problems if p not in before)
        return Brought(mask_url(self.url), found.files, found.stored, found.already, problems)

    def _ended(self, store: Store, call: Call) -> None:
        """
        A try that ended while the store was away: judge its sweep.

        What counts as found changes only where no later try began.

        Raises:
            StoreUnreachable: The store went away; the file is tried again.
        """
        from topobench.db import look, schedules

        named = (call["cluster"], call["schedule"])
        schedule = next(s for s in self.schedules if (s.cluster, s.name) == named)
        state = schedules.of(store, *named)
        is_last = state is not None and state.sweep == call["sweep"]
        ran = Ran(
            schedule,
            state.due_at if state and is_last else None,
            exit_code=call["exit_code"],
            sweep=call["sweep"],
            message="\n".join(filter(None, ["came in from the spool", call["message"]])),
            is_late=True,
            is_news=True,
        )
        findings: Mapping[str, str] = state.findings if state and is_last else {}
        try:
            ran = replace(ran, counts=look.progress(store, str(ran.sweep))["counts"])
            if self.check:
                ran, findings = checked(ran, findings)
        except StoreUnreachable:
            raise
        except TopobenchError as error:
            ran = replace(ran, verdict=3 if self.check else None, message=str(error))
        if is_last:
            schedules.put_findings(store, *named, findings)
        else:
            ran = replace(ran, new={}, cleared=())
        self.ran.append(ran)


def _left_over(folder: Path, whole: Fleet, memory: Memory) -> list[Brought]:
    """Finished files that no schedule of the fleet takes, told once."""
    from topobench.db import spool
    from topobench.db.engine import place_of

    files = [f for f in spool.files_of(folder) if f.suffix == ".jsonl"]
    places = {place_of(url) for url in whole.stores}
    found = {"strange": _strange(files, places), "nobody's": _nobodys(files, whole, places)}
    told = []
    for about, problems in found.items():
        if not problems:
            memory.forget(about)
        elif memory.is_new(about, str(problems)):
            told.append(Brought(None, problems=problems))
    return told


def _strange(files: Sequence[Path], own: Set[str]) -> tuple[str, ...]:
    """What is told of files of stores that the fleet does not name."""
    from topobench.db import spool

    found: dict[str, list[str]] = {}
    for file in files:
        place = spool.place_told(file)
        if place not in own:
            found.setdefault(place or "a store that it does not name", []).append(str(file))
    return tuple(
        f"{len(named)} of {place}, which is none of this fleet: "
        f"bring it in with `topobench db import {named[0]} --store URL`"
        for place, named in sorted(found.items())
    )


def _nobodys(files: Sequence[Path], whole: Fleet, places: Set[str]) -> tuple[str, ...]:
    """
    What is told of ends of nights that no fleet took in a day: a schedule has a new name, or so.

    Of a fleet with wrong clusters nothing is said: they may be theirs.
    """
    from topobench.db import spool

    if whole.wrong:
        return ()
    schedules = {(s.cluster, s.name) for s in whole.schedules}
    ends = ((f, spool.schedule_told(f)) for f in files)
    return tuple(
        f"{file} ends a night of {'/'.join(told)}, which is no schedule of this fleet any more: "
        f"bring it in with `topobench db import {file} --store URL`, and judge the night with "
        f"`topobench check {file.name[:_SWEEP_ID]} --store URL`"
        for file, told in ends
        if told is not None
        and told not in schedules
        and spool.place_told(file) in places
        and _age_seconds(file) > _TAKEN_SECONDS
    )


def _age_seconds(file: Path) -> float:
    """Since a file was written; 0 of one that is gone by now."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return 0.0


_TAKEN_SECONDS = 86400.0
"""Within which a fleet whose spool is in the same folder takes what is its own."""
_SWEEP_ID = 36
"""Letters of the UUID that :func:`keep_end` begins names with."""
