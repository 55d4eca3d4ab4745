"""What is planted in a synthetic fleet, and how ``--effects`` is read; pure."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import StrEnum

from topobench.errors import UsageError

EXAMPLE = "slow-host=h07:3%@45,slow-gpu=h02/5:10%,driver=30:-2%,degraded-link=h11@50"
"""What is planted by default, as far as the fleet has these hosts and nights."""
NOTHING = "none"
GPUS = 8
"""GPUs of every host of the fleet."""
LARGEST_PERCENT = 90.0
DRIVER_CHANGES = 3
"""At most; each needs a version of its own."""


class Kind(StrEnum):
    """What can be planted."""

    SLOW_HOST = "slow-host"
    SLOW_GPU = "slow-gpu"
    DRIVER = "driver"
    DEGRADED_LINK = "degraded-link"


_FORMS = {
    Kind.SLOW_HOST: "slow-host=HOST:PERCENT[@NIGHT]",
    Kind.SLOW_GPU: "slow-gpu=HOST/GPU:PERCENT[@NIGHT]",
    Kind.DRIVER: "driver=NIGHT:SIGNED_PERCENT",
    Kind.DEGRADED_LINK: "degraded-link=HOST[/GPU][@NIGHT]",
}


@dataclass(frozen=True, slots=True)
class Effect:
    """
    One planted effect.

    Args:
        night: The first night it acts, from 1.
        host: Number of the host, from 1; None for a change of the driver.
        gpu: Index of the GPU; None for whole hosts.
        speed: What the speed is multiplied by: 0.97 is 3 % slower.
    """

    kind: Kind
    night: int
    host: int | None
    gpu: int | None
    speed: float


def host_name(number: int, hosts: int) -> str:
    """``h07``: as many digits as the largest number of the fleet has, two at least."""
    return f"h{number:0{max(2, len(str(hosts)))}d}"


def parse_effects(text: str | None, *, hosts: int, nights: int) -> tuple[Effect, ...]:
    """
    Read ``--effects``.

    Args:
        text: As typed, ``none`` for no effect, or None for :data:`EXAMPLE`, from which hosts
            and nights that the fleet does not have are left out.

    Raises:
        UsageError: Names the part, what is wrong with it, and the form it must have.
    """
    if text is None:
        return tuple(e for e in map(_parsed, EXAMPLE.split(",")) if _exists(e, hosts, nights))
    if text.strip() == NOTHING:
        return ()
    found = []
    for part in text.split(","):
        effect = _parsed(part.strip())
        _check(part.strip(), effect, hosts, nights)
        found.append(effect)
    _check_together(found)
    return tuple(found)


def _parsed(part: str) -> Effect:
    name, equals, value = part.partition("=")
    if name not in tuple(Kind) or not equals:
        near = difflib.get_close_matches(name, tuple(Kind), n=1)
        meant = f" (did you mean {str(near[0])!r}?)" if near else ""
        raise UsageError(f"--effects: {part!r} is no effect{meant}; {_accepted()}")
    kind = Kind(name)
    if kind is Kind.DRIVER:
        found = re.fullmatch(r"(\d{1,6}):([+-]?[\d.]{1,12})%", value, re.ASCII)
        if found is None:
            raise _wrong(part, f"expected {_FORMS[kind]}")
        return Effect(kind, int(found[1]), None, None, 1 + _percent(part, found[2]) / 100)
    found = re.fullmatch(
        r"h(\d{1,6})(?:/(\d{1,3}))?(?::([\d.]{1,12})%)?(?:@(\d{1,6}))?", value, re.ASCII
    )
    if found is None:
        raise _wrong(part, f"expected {_FORMS[kind]}")
    number, gpu, size, night = found.groups()
    _check_form(part, kind, gpu, size)
    speed = 0.5 if size is None else 1 - _percent(part, size) / 100
    index = 0 if gpu is None and kind is Kind.DEGRADED_LINK else None if gpu is None else int(gpu)
    return Effect(kind, int(night or 1), int(number), index, speed)


def _check_form(part: str, kind: Kind, gpu: str | None, size: str | None) -> None:
    """What each kind needs, and what it cannot take."""
    wrong = None
    if kind is Kind.SLOW_HOST and gpu is not None:
        wrong = "a whole host has no GPU number"
    elif kind is Kind.SLOW_GPU and gpu is None:
        wrong = "the GPU is missing"
    elif kind is Kind.DEGRADED_LINK and size is not None:
        wrong = "a link that lost half its lanes is always 50 % slower, so it takes no size"
    elif kind is not Kind.DEGRADED_LINK and size is None:
        wrong = "the size is missing"
    if wrong:
        raise _wrong(part, f"{wrong}; expected {_FORMS[kind]}")


def _percent(part: str, text: str) -> float:
    try:
        size = float(text)
    except ValueError as error:
        raise _wrong(part, f"{text!r} is no number") from error
    if not 0 < abs(size) <= LARGEST_PERCENT:
        raise _wrong(part, f"the size must be above 0 % and at most {LARGEST_PERCENT:g} %")
    return size


def _exists(effect: Effect, hosts: int, nights: int) -> bool:
    return effect.night <= nights and (effect.host or 1) <= hosts


def _check(part: str, effect: Effect, hosts: int, nights: int) -> None:
    """Refuse what the fleet does not have."""
    if effect.host is not None and not 1 <= effect.host <= hosts:
        last = host_name(hosts, hosts)
        raise _wrong(part, f"there are the hosts {host_name(1, hosts)} to {last}")
    if effect.gpu is not None and effect.gpu >= GPUS:
        raise _wrong(part, f"each host has the GPUs 0 to {GPUS - 1}")
    first = 2 if effect.kind is Kind.DRIVER else 1
    if not first <= effect.night <= nights:
        raise _wrong(part, f"the night must be from {first} to {nights}")


def _check_together(effects: list[Effect]) -> None:
    """Refuse what would act twice on the same thing, or has no driver version left."""
    seen = set()
    for effect in effects:
        target = (effect.kind, effect.host, effect.gpu)
        if effect.kind is Kind.DRIVER:
            target = (effect.kind, effect.night, None)
        if target in seen:
            raise UsageError(f"--effects: {effect.kind} is planted twice on the same target")
        seen.add(target)
    if sum(e.kind is Kind.DRIVER for e in effects) > DRIVER_CHANGES:
        raise UsageError(f"--effects: at most {DRIVER_CHANGES} changes of the driver")


def _wrong(part: str, text: str) -> UsageError:
    return UsageError(f"--effects: {part!r}: {text}")


def _accepted() -> str:
    return f"accepted are {', '.join(_FORMS.values())}, joined by commas, or {NOTHING}"
