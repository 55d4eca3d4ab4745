"""What the tests of verdicts share: stores filled through the real store, with known effects."""

from __future__ import annotations

import dataclasses
import functools
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import storing
from topobench.db.store import Store
from topobench.host import Host
from topobench.reading import Cell, Reading, Run, Scalar

H2D: Mapping[str, Scalar] = {
    "bytes": 256 << 20,
    "direction": "h2d",
    "memory": "pinned",
    "at_once": "one",
}
LEVEL = 50e9
SPREAD = 0.003
"""Between processes: 0.3 %."""


@dataclasses.dataclass
class Fleet:
    """
    Writes sweeps into a store; the same seed gives the same numbers.

    Args:
        path: Of the SQLite file, made here unless there is a ``url``.
        spread: Standard deviation between processes, as a share.
    """

    path: Path
    spread: float = SPREAD
    seed: int = 1
    url: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        if not self.url:
            self.url = f"sqlite:///{self.path}"
            self.path.write_bytes(_new_store())

    def sweep(
        self,
        hosts: Sequence[Host | str] = ("k1",),
        *,
        effect: float | Mapping[str, float] = 0.0,
        processes: int = 6,
        day: int = 2,
        level: float = LEVEL,
        metric: str = storing.BANDWIDTH,
        probe: str = "host_to_device",
        params: Mapping[str, Scalar] | None = None,
        devices: Sequence[Sequence[str]] = ((),),
        version: int = 1,
        driver: str | Mapping[str, str] | None = None,
        environment: Mapping[str, Any] | None = None,
        warnings: Sequence[str] = (),
        samples: int = 1,
        binding: Any = "none",
        env: Mapping[str, str] | None = None,
        ranks: int = 1,
        point: Mapping[str, Scalar] | None = None,
        together: Sequence[str] = (),
        **begin: Any,
    ) -> str:
        """
        Store a sweep of one case.

        Args:
            effect: Relative change of the level: of all hosts, or by host key.
            devices: Device sets measured on each host.
            driver: Of all hosts, or by host key.
            together: Keys of the hosts of each rank; then only the first measures, with them.
        """
        known = [storing.host(h) if isinstance(h, str) else h for h in hosts]
        cells: list[Cell] = []
        for host in [h for h in known if not together or h.key == together[0]]:
            for group in devices:
                for number in range(processes):
                    cell = storing.cell(
                        host=host.key,
                        probe=probe,
                        params=H2D if params is None else params,
                        devices=group,
                        process_no=number,
                        binding=binding,
                        env=env,
                        ranks=ranks,
                    )
                    case = dataclasses.replace(cell.case, version=version)
                    cells.append(dataclasses.replace(cell, case=case, hosts=tuple(together)))
        with Store.open(self.url) as store:
            sweep = storing.begin(store, *cells, hosts=known, day=day, **begin)
            for place, cell in enumerate(cells):
                change = effect if isinstance(effect, float) else effect.get(cell.host, 0.0)
                middle = level * (1 + change)
                reading = self._reading(middle, metric, samples, point)
                own = driver if driver is None or isinstance(driver, str) else driver[cell.host]
                more = {**({"driver": own} if own else {}), **(environment or {})}
                store.put_run(_run(cell, reading, place, day, more, warnings))
            store.end_sweep(sweep, ended_at=storing.at(len(cells) + 60, day))
        return sweep

    def _reading(
        self, middle: float, metric: str, samples: int, point: Mapping[str, Scalar] | None
    ) -> Reading:
        centre = middle * self.random.gauss(1, self.spread)
        made = [centre * self.random.gauss(1, 0.001) for _ in range(samples)]
        found = storing.reading(centre, metric=metric, samples=made, point=point)
        if samples < 299:
            return found
        worst = sorted(made)[int(0.99 * samples)]
        return dataclasses.replace(found, summary=dataclasses.replace(found.summary, p99=worst))


@functools.cache
def _new_store() -> bytes:
    """The file of an empty store, made once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.db")
        Store.open(f"sqlite:///{path}").close()
        return path.read_bytes()


def _run(
    cell: Cell,
    reading: Reading,
    place: int,
    day: int,
    environment: Mapping[str, Any],
    warnings: Sequence[str],
) -> Run:
    made = storing.run(cell, reading, second=5 + place, day=day, warnings=tuple(warnings))
    return dataclasses.replace(made, environment={**made.environment, **environment})
