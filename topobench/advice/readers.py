"""How many threads should read weights together: the workers of a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from topobench.advice.enough import Apart, enough
from topobench.advice.words import Advice, Cell, Outlook, signed
from topobench.fit import PEAK_SHARE
from topobench.reading import MEASURED

MEASURE = "topobench probe --probes weight_load --profile full --set weight_load.readers=1,2,4,8,16"
USUAL_READERS = 4
_RATE = "load_bandwidth_bytes_per_second"
_SUBJECT = "loading weights"
_ARMS = ("local", "none")

Kind = tuple[Any, ...]


def readers(cells: Sequence[Cell]) -> Iterator[Advice]:
    """The fewest threads that load nearly as fast as any number of them."""
    measured = _most_settings([c for c in cells if c["probe"] == "weight_load"])
    best = enough(measured, USUAL_READERS)
    if best is None:
        text = "loading was not measured with three or more numbers of threads"
        yield Advice("readers", _SUBJECT, (), Outlook.NOT_MEASURED, text, (MEASURE,))
        return
    text = (
        f"{best.best} threads are the fewest measured that reach {PEAK_SHARE:.0%} of the peak of "
        f"{best.peak / 1e9:.1f} GB/s from file to GPU"
    )
    if best.usual >= best.best:
        text += f"; {best.usual} are enough"
    elif best.found is not None:
        text += f"; {signed(best.found)} against {best.usual}"
    yield Advice(
        kind="readers",
        subject=_SUBJECT,
        devices=(),
        outlook=best.outlook,
        text=text,
        lines=(MEASURE,) if best.outlook is Outlook.UNDECIDED else (),
        evidence=f"weight_load, {_RATE}, {best.settings} numbers of threads, "
        f"{best.gpus} GPU{'' if best.gpus == 1 else 's'}",
    ).showing(best.found)


def _most_settings(cells: Sequence[Cell]) -> dict[int, Apart]:
    """By threads, of the file, chunk and arm that was measured with most numbers of them."""
    kinds: dict[Kind, dict[int, Apart]] = {}
    for cell in cells:
        threads = cell["params"].get("readers")
        if cell["status"] not in MEASURED or not threads or cell["arm"] not in _ARMS:
            continue
        rest = sorted((k, str(v)) for k, v in cell["params"].items() if k != "readers")
        for reading in cell["readings"]:
            if reading["metric"] == _RATE and reading["median"] and len(cell["devices"]) == 1:
                of_kind = kinds.setdefault((cell["arm"], tuple(rest)), {})
                process = of_kind.setdefault(threads, {})
                place = cell["block"], cell["process_no"]
                process.setdefault(place, {})[cell["devices"][0]] = reading["median"]
    ordered = sorted(kinds.items(), key=lambda i: (-len(i[1]), _ARMS.index(i[0][0])))
    return ordered[0][1] if ordered else {}
