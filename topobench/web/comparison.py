"""
The process that makes one comparison for the web server.

``python -m topobench.web.comparison``: the question as JSON on stdin, the answer on stdout:
``{"found": data of compare}`` or ``{"error": one of KINDS, "text": message}``.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any

from topobench import processes
from topobench.errors import (
    RefusedError,
    StoreError,
    StoreUnreachable,
    TopobenchError,
    UsageError,
)

KINDS: dict[str, type[TopobenchError]] = {
    kind.__name__: kind
    for kind in (UsageError, RefusedError, StoreUnreachable, StoreError, TopobenchError)
}
"""Errors that a page tells apart, the special ones first."""


def main() -> None:
    """Compare once, and end with the server."""
    given = json.loads(sys.stdin.buffer.read())
    processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != given["parent"]:
        return
    os.nice(5)  # pages come first
    gc.disable()  # nothing here goes round in circles, and looking takes a fifth of the time
    sys.stdout.write(json.dumps(_answer(given["store"], given["question"])))


def _answer(store: str, question: dict[str, Any]) -> dict[str, Any]:
    from topobench import comparing
    from topobench.db.strays import blame

    a, b, flags = question.pop("a"), question.pop("b"), question
    try:
        found = comparing.compare(store, a, b, comparing.Wanted(**flags))
    except TopobenchError as error:
        kind = next(name for name, kind in KINDS.items() if isinstance(error, kind))
        return {"error": kind, "text": str(error)}
    except Exception:
        edited = blame(store)
        if edited is None:
            raise
        return {"error": StoreError.__name__, "text": str(edited)}
    return {"found": found.data}


if __name__ == "__main__":
    main()
