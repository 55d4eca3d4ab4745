"""The arms of a configuration: bindings, rings and environments, by name or written out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from topobench.config_fields import (
    Fields,
    Parsers,
    environment,
    one_of,
    parse_flag,
    parse_name,
    value_of,
)
from topobench.env_arms import PRESETS, EnvArm
from topobench.reading import MemoryPolicy
from topobench.ring_orders import Orders
from topobench.topology import parse_cpu_list
from topobench.units import parse_count
from topobench.yaml_strict import Listing, Node, Table, Text

T = TypeVar("T")

BUILT_IN_BINDINGS = ("none", "local", "remote", "spread")
RING_NAMES = ("auto", "auto_ring", "identity", "best", "worst")
_NUMBER_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


@dataclass(frozen=True, slots=True)
class BindingChoice:
    """
    A binding arm: a built-in one by name, or the user's own.

    Args:
        cpus: CPU list; None with ``cpu_nodes`` or for the whole allowed set.
        cpu_nodes: NUMA nodes whose CPUs to use.
    """

    name: str
    cpus: str | None = None
    cpu_nodes: tuple[int, ...] = ()
    memory: MemoryPolicy = MemoryPolicy.DEFAULT
    memory_nodes: tuple[int, ...] = ()


Ring = str | Orders | tuple[int, ...]


def bindings(fields: Fields, node: Node, key: str) -> tuple[BindingChoice, ...]:
    """Binding arms: built-in names and the user's own tables."""
    return _arms(fields, node, key, read=_binding, name_of=lambda choice: choice.name)


def rings(fields: Fields, node: Node, key: str) -> tuple[Ring, ...]:
    """Ring arms: names and explicit orders of device positions."""
    return _arms(fields, node, key, read=_ring, name_of=_ring_name)


def env_arms(fields: Fields, node: Node, key: str) -> tuple[EnvArm, ...]:
    """Environments compared as arms: built-in names and the user's own tables."""
    return _arms(fields, node, key, read=_env_arm, name_of=lambda arm: arm.name)


def _arms(
    fields: Fields,
    node: Node,
    key: str,
    *,
    read: Callable[[Fields, Node, str], T | None],
    name_of: Callable[[T], str],
) -> tuple[T, ...]:
    """The items of a list that could be read, with a mistake for each name met before."""
    found = []
    for name, item in fields.items(node, key):
        arm = read(fields, item, name)
        if arm is not None:
            found.append((name_of(arm), item.where, arm))
    return fields.unique(found, key)


def _binding(fields: Fields, node: Node, key: str) -> BindingChoice | None:
    if not isinstance(node, Table):
        name = fields.parsed(node, key, one_of(BUILT_IN_BINDINGS))
        return BindingChoice(name) if name else None
    parsers: Parsers = {
        "name": value_of(_arm_name),
        "cpus": value_of(_cpus),
        "memory": value_of(_memory),
    }
    values = fields.section(node.entries, parsers, f"{key}.")
    if not any(entry.key == "name" for entry in node.entries):
        fields.wrong(node.where, key, "has no name; add name: NAME to tell this arm apart")
    if "name" not in values:
        return None
    cpus, cpu_nodes = values.get("cpus", (None, ()))
    memory, memory_nodes = values.get("memory", (MemoryPolicy.DEFAULT, ()))
    return BindingChoice(values["name"], cpus, cpu_nodes, memory, memory_nodes)


def _env_arm(fields: Fields, node: Node, key: str) -> EnvArm | None:
    if not isinstance(node, Table):
        name = fields.parsed(node, key, one_of(PRESETS))
        return EnvArm.preset(name) if name else None
    parsers: Parsers = {"name": value_of(_env_arm_name), "env": environment}
    values = fields.section(node.entries, parsers, f"{key}.")
    for wanted in ("name", "env"):
        if not any(entry.key == wanted for entry in node.entries):
            fields.wrong(node.where, key, f"has no {wanted}; write {{name: NAME, env: {{...}}}}")
    if "env" in values and not values["env"]:
        fields.wrong(node.where, key, "sets nothing: that is what every other arm does")
    return EnvArm(**values) if values.keys() == {"name", "env"} else None


def _env_arm_name(text: str) -> str:
    if text in PRESETS:
        raise ValueError(f"{text} is built in; choose another name for your own arm")
    return parse_name(text)


def _arm_name(text: str) -> str:
    if text in BUILT_IN_BINDINGS:
        raise ValueError(f"{text} is built in; choose another name for your own arm")
    return parse_name(text)


def _cpus(text: str) -> tuple[str | None, tuple[int, ...]]:
    if text.startswith("node:"):
        return None, _nodes(text.removeprefix("node:"))
    if not _numbers(text):
        raise ValueError(f"{text!r} is no CPU list; expected CPUs (0-3,8) or nodes (node:0,1)")
    return text, ()


def _memory(text: str) -> tuple[MemoryPolicy, tuple[int, ...]]:
    policy, _, nodes = text.partition(":")
    if text == "default":
        return MemoryPolicy.DEFAULT, ()
    if policy not in ("bind", "interleave"):
        raise ValueError(f"{text!r} is no memory policy; expected default, bind:0, interleave:0,1")
    return MemoryPolicy(policy), _nodes(nodes)


def _nodes(text: str) -> tuple[int, ...]:
    found = _numbers(text)
    if not found:
        raise ValueError(f"{text!r} names no NUMA node; expected numbers such as 0,1")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list string; none if it is no such list."""
    if not _NUMBER_LIST.fullmatch(text):
        return ()
    try:
        return parse_cpu_list(text)
    except ValueError:
        return ()


def _ring(fields: Fields, node: Node, key: str) -> Ring | None:
    if isinstance(node, Text):
        return fields.parsed(node, key, one_of(RING_NAMES))
    if isinstance(node, Table) and any(entry.key in ("orders", "force") for entry in node.entries):
        return _orders(fields, node, key)
    return _order(fields, node, key)


def _ring_name(ring: Ring) -> str:
    if isinstance(ring, str):
        return ring
    return ring.name if isinstance(ring, Orders) else Orders((ring,)).name


def _orders(fields: Fields, node: Table, key: str) -> Orders | None:
    """Orders for the channels in turn, which may be forced."""
    parsers: Parsers = {"orders": _order_list, "force": value_of(parse_flag)}
    found = fields.section(node.entries, parsers, f"{key}.")
    orders: tuple[tuple[int, ...], ...] = found.get("orders", ())
    if len({len(order) for order in orders}) != 1:
        example = "expected some of one length, such as [[0, 1, 2, 3], [0, 2, 1, 3]]"
        fields.wrong(node.where, f"{key}.orders", f"has no orders, or of unlike GPUs; {example}")
        return None
    return Orders(orders, forced=found.get("force", False))


def _order_list(fields: Fields, node: Node, key: str) -> tuple[tuple[int, ...], ...]:
    found = (_order(fields, item, name) for name, item in fields.items(node, key))
    return tuple(order for order in found if order is not None)


def _order(fields: Fields, node: Node, key: str) -> tuple[int, ...] | None:
    example = "expected an order of device positions such as [0, 2, 1, 3]"
    if not isinstance(node, Listing) or not all(isinstance(item, Text) for item in node.items):
        fields.wrong(node.where, key, f"looks like an adjacency list; {example}")
        return None
    order = [fields.parsed(item, name, parse_count) for name, item in fields.items(node, key)]
    positions = tuple(position for position in order if position is not None)
    if sorted(positions) != list(range(len(order))) or len(order) < 2:
        fields.wrong(node.where, key, f"must hold each position from 0 exactly once; {example}")
        return None
    return positions
