"""
The rules that verdicts follow: policy.yaml of the package, or of the user.

A policy is stored with each verdict by its version, so a verdict can be explained later.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topobench import yaml_strict
from topobench.config_fields import Fields, Parsers, strings, value_of
from topobench.errors import ConfigError
from topobench.yaml_strict import Table

FILE = "policy.yaml"

_MOST_NUMBER = 100
_MOST_DAYS = 3650
"""Numbers far beyond reason overflow, or turn a check off without a word."""


@dataclass(frozen=True, slots=True)
class Policy:
    """
    Every rule; policy.yaml says what each means.

    Args:
        version: ``1``, or ``1+ab12cd34`` with a digest of what a user's file changed.
    """

    version: str
    z: float
    bandwidth_delta: float
    latency_delta: float
    tokens_delta: float
    compute_delta: float
    mad_floor: float
    nights: int
    confirm: int
    cases: int
    strong: float
    fail_effect: float
    peer_hosts: int
    peer_devices: int
    leave_one_out_below: int
    peer_days: int
    history_nights: int
    segment: int
    penalty: float
    ceiling_ratio: float
    ceiling_bytes: int
    breaker_share: float
    breaker_hosts: int
    stale_days: int
    peer_commands: tuple[str, ...] = ()

    def delta(self, unit: str) -> float | None:
        """The smallest relative change that matters in a unit; None: it is not judged."""
        return {
            "B/s": self.bandwidth_delta,
            "s": self.latency_delta,
            "token/s": self.tokens_delta,
            "FLOP/s": self.compute_delta,
        }.get(unit)


def default_text() -> str:
    """The package's policy.yaml, with its comments."""
    return importlib.resources.files("topobench").joinpath(FILE).read_text(encoding="utf-8")


@functools.cache
def default() -> Policy:
    """
    The package's own policy.

    Raises:
        ConfigError: policy.yaml is wrong, which our own tests would show.
    """
    mistakes: list[str] = []
    values = _values(yaml_strict.parse(default_text(), FILE, mistakes), mistakes)
    if mistakes:
        raise ConfigError(mistakes)
    return Policy(**values)


def load(path: Path | None) -> Policy:
    """
    The package's policy with the keys of a file in place of its own.

    Raises:
        ConfigError: The file can't be read, or holds mistakes; all of them are named.
    """
    own = default()
    if path is None:
        return own
    mistakes: list[str] = []
    changed = _values(yaml_strict.read(path, mistakes), mistakes)
    known = {**dataclasses.asdict(own), **changed}
    if not mistakes and known["confirm"] > known["nights"]:
        mistakes.append(f"{path}: confirm must not be above nights ({known['nights']})")
    if mistakes:
        raise ConfigError(mistakes)
    rules = json.dumps({k: v for k, v in known.items() if k != "version"}, sort_keys=True)
    digest = hashlib.sha256(rules.encode()).hexdigest()[:8]
    return Policy(**{**known, "version": f"{known['version']}+{digest}"})


def _values(table: Table | None, mistakes: list[str]) -> dict[str, Any]:
    fields = Fields(mistakes)
    return fields.section(() if table is None else table.entries, _PARSERS)


def _share(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1:
        raise ValueError(f"{text} is no share; give a number between 0 and 1, such as 0.02")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
    if not 0 < value <= _MOST_NUMBER:
        raise ValueError(f"{text} must be a number above 0, and at most {_MOST_NUMBER}")
    return value


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(f"{text!r} must be a whole number from {least} to {most}")
        return int(text)

    return parse


_PARSERS: Parsers = {
    "version": value_of(str),
    "peer_commands": strings,
    **{name: value_of(_number) for name in ("z", "strong", "penalty")},
    **{
        name: value_of(_share)
        for name in (
            "bandwidth_delta",
            "latency_delta",
            "tokens_delta",
            "compute_delta",
            "mad_floor",
            "fail_effect",
            "ceiling_ratio",
            "breaker_share",
        )
    },
    **{
        name: value_of(_whole(least, most))
        for name, (least, most) in {
            "nights": (1, 366),
            "confirm": (1, 366),
            "cases": (1, 10_000),
            "peer_hosts": (3, 1_000_000),
            "peer_devices": (3, 1_000_000),
            "leave_one_out_below": (1, 1_000_000),
            "peer_days": (0, _MOST_DAYS),
            "history_nights": (6, _MOST_DAYS),
            "segment": (3, _MOST_DAYS),
            "ceiling_bytes": (1, 2**60),
            "breaker_hosts": (1, 1_000_000),
            "stale_days": (1, _MOST_DAYS),
        }.items()
    },
}
