"""
An inference server of the user: where it is, or how it is started.

It travels from cluster.yaml to a worker as one text in its case; the digest of that text tells
two definitions of one name apart. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench.reading import Scalar, canonical_text
from topobench.user_command import digest_of

PROBE = "serving"
PORT, HOST = "{port}", "127.0.0.1"
"""What stands for the port in the arguments of a server that is started; where it listens."""
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Server:
    """
    A server, as the section ``servers:`` describes it.

    Args:
        url: Of a running server, up to the path before ``/v1``; None if it is started.
        argv: Program and arguments that start it; no shell reads them.
        grid: Word in ``argv``, in braces -> its values; each combination is a server.
        arguments: Values taken from the grid, once one combination is chosen.
        version: Program and arguments that print its version; empty: the server is asked.
        model: Name that requests carry; None: the first that it lists.
        key_env: Variable that holds the API key; the key itself is nowhere.
        body: Further fields of every request.
        ca_file: Certificates to trust beside the system's.
        start_seconds: About how long it takes to be ready.
        timeout_seconds: It is given up when it is not ready after so long.
    """

    name: str
    url: str | None = None
    argv: tuple[str, ...] = ()
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    version: tuple[str, ...] = ()
    model: str | None = None
    key_env: str | None = None
    body: Mapping[str, Scalar] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    ca_file: str | None = None
    gpus: str = "none"
    start_seconds: float = 60.0
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def text(self) -> str:
        """All of it as canonical JSON."""
        return canonical_text(self)

    @property
    def digest(self) -> str:
        """The beginning of the SHA-256 of :attr:`text`."""
        return digest_of(self.text)

    @property
    def point(self) -> str:
        """``block=16 seqs=64``: its place in the grid; empty without one."""
        return " ".join(f"{k}={v}" for k, v in self.arguments.items())

    def points(self) -> Iterator[Server]:
        """One server for each combination of the grid, its values in the arguments."""
        for values in itertools.product(*self.grid.values()):
            chosen = dict(zip(self.grid, values, strict=True))
            argv = tuple(_filled(word, chosen) for word in self.argv)
            yield dataclasses.replace(self, argv=argv, grid={}, arguments=chosen)

    def command(self, port: int) -> tuple[str, ...]:
        """What starts it on a port."""
        return tuple(word.replace(PORT, str(port)) for word in self.argv)

    @classmethod
    def from_text(cls, text: str) -> Server:
        """
        Read what :attr:`text` gave.

        Raises:
            ValueError: It is no definition.
        """
        try:
            value: dict[str, Any] = json.loads(text)
            grid = {k: tuple(v) for k, v in value["grid"].items()}
            lists = {k: tuple(value[k]) for k in ("argv", "version")}
            return cls(**{**value, **lists, "grid": grid})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no definition of a server: {error!r}") from error


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
