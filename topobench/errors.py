"""
Every error topobench raises on purpose.

::

    TopobenchError
    ├── UsageError               a flag or argument is wrong
    │   └── ConfigError          a config file is wrong; carries every mistake found
    ├── DiscoveryError           a host's wiring could not be read
    ├── RefusedError             another sweep holds the host, the host is busy
    ├── ProbeError               a measurement did not give a number
    │   ├── ProbeUnavailable     this host cannot run it: stored as skipped
    │   └── ResultInvalid        it ran, but its result must not be used
    ├── ImportFailed             a foreign file could not be read
    ├── AgentError               a host's agent could not be started or reached
    └── StoreError               the database
        ├── SchemaTooNew         written by a newer topobench
        ├── StoreUnreachable     away or locked; results go to the spool
        ├── StoreConflict        the same UUID with another content
        └── NotFound             no such sweep, host or query

Messages say what, where, and what to do. Each class carries the exit code the
command line gives for it.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_MISTAKES = 100


class TopobenchError(Exception):
    """The root; catching it catches everything topobench raises on purpose."""

    exit_code = 1


class UsageError(TopobenchError):
    """A flag or argument is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """
    A config file is wrong.

    Args:
        mistakes: One line each, ``file:line: key: what, accepted values``. The message shows
            the first hundred.
    """

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        left = len(self.mistakes) - _MOST_MISTAKES
        more = [f"and {left} more"] if left > 0 else []
        super().__init__("\n".join([*self.mistakes[:_MOST_MISTAKES], *more]))


class DiscoveryError(TopobenchError):
    """A host's wiring could not be read."""


class RefusedError(TopobenchError):
    """The host is held by another sweep, or busy."""

    exit_code = 4


class ProbeError(TopobenchError):
    """
    A measurement did not give a number.

    Args:
        code: A ``topobench.reading.ReasonCode`` value.
        text: What happened and what would mend it.
    """

    def __init__(self, code: str, text: str) -> None:
        self.code = str(code)
        self.text = text
        super().__init__(f"{self.code}: {text}")

    def __reduce__(self) -> tuple[type[ProbeError], tuple[str, str]]:
        return type(self), (self.code, self.text)


class ProbeUnavailable(ProbeError):
    """This host cannot run the probe; stored as skipped with the reason."""


class ResultInvalid(ProbeError):
    """The probe ran, but its result must not be used (wrong data, wrong binding ...)."""


class ImportFailed(TopobenchError):
    """A foreign file could not be read."""


class AgentError(TopobenchError):
    """A host's agent could not be started or reached."""


class StoreError(TopobenchError):
    """The database could not do what was asked."""


class SchemaTooNew(StoreError):
    """The database was written by a newer topobench."""

    exit_code = 4


class StoreUnreachable(StoreError):
    """The database is away or locked; results go to the spool meanwhile."""


class StoreConflict(StoreError):
    """A row with the same UUID but another content is already stored."""


class NotFound(StoreError):
    """No such sweep, host or query."""
