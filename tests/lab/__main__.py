"""Runs one command in a guest, from the shell: ``tests/lab/boot SHAPE -- COMMAND``."""

from __future__ import annotations

import argparse
import subprocess
import sys

import lab


def main() -> int:
    """The command's exit code; 124 if it took too long, 1 if there is no lab here."""
    shapes = "\n".join(f"  {s.name:8} {s.summary}" for s in lab.SHAPES.values())
    parser = argparse.ArgumentParser(
        prog="boot",
        description="Run a command in a guest with several NUMA nodes.",
        epilog=f"shapes:\n{shapes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shape", choices=lab.SHAPES, metavar="SHAPE")
    parser.add_argument("--timeout", type=float, default=240, metavar="SECONDS")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="put -- before it")
    given = parser.parse_args()
    if reason := lab.unavailable():
        sys.stderr.write(f"lab: {reason}\n")
        return 1
    try:
        done = lab.run(given.shape, given.command, timeout=given.timeout)
    except subprocess.TimeoutExpired as error:
        sys.stdout.write(error.output)
        sys.stderr.write(f"lab: {error}\n")
        return 124
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
