"""
Runs in the guest: cells of the tests' own probes, each with numactl and without.

Reads ``[[probe, binding, params], ...]`` from its argument and prints, for each,
``{"numactl": run, "syscalls": run}``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from launching import Lab, cell, host
from topobench.reading import Binding, to_json


def main() -> None:
    """Run them all and print one JSON list."""
    lab = Lab(Path(tempfile.mkdtemp()))
    found = []
    for probe, binding, params in json.loads(sys.argv[1]):
        runs = {}
        for way, program in (("numactl", shutil.which("numactl")), ("syscalls", None)):
            asked = cell(probe, binding=Binding.from_json(binding), **params)
            (run,) = lab.run(asked, on=host(numactl=program), start=120.0)
            runs[way] = to_json(run)
        found.append(runs)
    lab.assert_nothing_left(30.0)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
