"""
What is installed on a host, told before our own code there is trusted.

An agent tells it first of all. Where none does, :func:`greet` travels by value as a task: it
uses the standard library alone, so that it answers on a host with no topobench, or with
another version of it.
"""

from __future__ import annotations

from typing import Any


def greet() -> dict[str, Any]:
    """Interpreter, clock, Python, topobench's version and source digest (None where absent)."""
    import hashlib
    import importlib.util
    import pathlib
    import platform
    import re
    import sys
    import time

    answer: dict[str, Any] = {
        "interpreter": sys.executable,
        "unix_seconds": time.time(),
        "python": platform.python_version(),
        "topobench": None,
        "source_digest": None,
    }
    spec = importlib.util.find_spec("topobench")
    if spec is None or spec.origin is None:
        return answer
    root = pathlib.Path(spec.origin).parent
    version = re.search(r'__version__ = "([^"]+)"', (root / "__init__.py").read_text())
    answer["topobench"] = version.group(1) if version else "unknown"
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".sql", ".yaml"}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    answer["source_digest"] = digest.hexdigest()
    return answer
