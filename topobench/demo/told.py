"""The demo in words: what was made and planted, and what to try; pure."""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path
from typing import Any

from topobench.demo.effects import Effect, Kind, host_name
from topobench.demo.fleet import Fleet, night_of
from topobench.demo.hosts import DRIVERS


def demo_document(fleet: Fleet, path: Path, written: dict[str, Any]) -> dict[str, Any]:
    """
    The ``data`` of ``topobench demo --format json`` (docs/schemas/demo.json).

    Args:
        written: What ``writing.write_fleet`` returned.
    """
    return {
        "path": str(path),
        "synthetic": True,
        "seed": fleet.seed,
        "clusters": [
            {
                "name": c.sku.cluster,
                "sku": c.sku.name,
                "hosts": c.hosts,
                "nights": fleet.nights - c.first + 1,
                "first_night": night_of(fleet, c.first).isoformat(),
                "last_night": fleet.last.isoformat(),
            }
            for c in fleet.clusters
        ],
        "effects": [_effect(e, fleet) for e in fleet.effects],
        **written,
        "next": next_commands(path),
    }


def next_commands(path: Path) -> list[str]:
    """Lines to try, ready to be copied."""
    store = shlex.quote(f"sqlite:///{path}")
    return [
        f"export TOPOBENCH_STORE={store}",
        "topobench report",
        "topobench query slowest-hosts",
        "topobench query numa-tax --param probe=host_to_device",
        "topobench query --list",
    ]


def _effect(effect: Effect, fleet: Fleet) -> dict[str, Any]:
    day = night_of(fleet, effect.night)
    return {
        "kind": str(effect.kind),
        "host": None if effect.host is None else host_name(effect.host, fleet.hosts),
        "gpu": effect.gpu,
        "night": effect.night,
        "day": day.isoformat(),
        "speed_ratio": effect.speed,
        "text": _text(effect, fleet, day),
    }


def _text(effect: Effect, fleet: Fleet, day: datetime.date) -> str:
    since = f"from night {effect.night} ({day.isoformat()}) on"
    percent = f"{abs(1 - effect.speed) * 100:g} %"
    host = None if effect.host is None else host_name(effect.host, fleet.hosts)
    match effect.kind:
        case Kind.SLOW_HOST:
            return f"host {host} is {percent} slower in everything, {since}"
        case Kind.SLOW_GPU:
            return f"GPU {effect.gpu} of host {host} is {percent} slower, {since}"
        case Kind.DEGRADED_LINK:
            lanes = f"GPU {effect.gpu} of host {host} has 8 of its 16 PCIe lanes"
            return f"{lanes}: copies between host and device at half speed, {since}"
    earlier = sum(e.kind is Kind.DRIVER and e.night < effect.night for e in fleet.effects)
    change = "slower" if effect.speed < 1 else "faster"
    return (
        f"driver {DRIVERS[earlier + 1]} on three hosts of four: copies between host and device "
        f"{percent} {change}, {since}; hosts with numbers divisible by four keep {DRIVERS[0]}"
    )
