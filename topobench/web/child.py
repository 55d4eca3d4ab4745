"""Processes that the server starts for what takes long, and ends when it ends itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it wrote."""

    code: int
    output: bytes
    errors: bytes

    def last_words(self) -> str:
        """The end of what it wrote as errors."""
        return self.errors.decode("utf-8", "replace").strip()[-600:]


def run(
    command: Sequence[str],
    check: Callable[[], None],
    *,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """
    Run a process to its end.

    Args:
        check: Called five times a second; what it raises ends the process.
        given: For its stdin.
        environment: None for that of the server.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    left: bytes | None = given
    with process:
        try:
            while True:
                check()
                try:
                    output, errors = process.communicate(left, timeout=_LOOK_SECONDS)
                    return Ended(process.returncode, output, errors)
                except subprocess.TimeoutExpired:
                    left = None
        finally:
            process.kill()
