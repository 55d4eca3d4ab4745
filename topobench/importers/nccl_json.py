"""
The JSON that nccl-tests writes with -J, versions 1 to 3 of its layout.

Its traps: a list ``env`` with the whole environment (dropped here, never stored), a misspelt
``average_bus_bandwidith``, roots padded with spaces, booleans and NaN as words, only the first
GPU of each process among ``devices``, and a file cut off where the run died.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from topobench.errors import ImportFailed
from topobench.importers.collectives import OPS, Half, Line
from topobench.importers.document import (
    Figure,
    check_rows,
    clean,
    figure,
    load_json,
    mapping,
    sequence,
    whole,
)
from topobench.importers.nccl_text import GIGABYTES, MICROSECONDS, Output, Rank, nccl_version

_CONFIG = {
    "threads": "nthreads",
    "gpus_per_thread": "ngpus",
    "minimum_bytes": "minimum_bytes",
    "maximum_bytes": "maximum_bytes",
    "step_factor": "step_factor",
    "step_bytes": "step_bytes",
    "warmups": "warmup_iters",
    "iterations": "iterations",
    "aggregated_iterations": "aggregated_iterations",
    "validation": "validation",
    "graph": "graph",
}


def read_json(text: str) -> Output:
    """
    What a JSON file says.

    Raises:
        ImportFailed: It is no JSON of nccl-tests.
    """
    try:
        document = mapping(load_json(text))
    except ImportFailed:
        document = _salvage(text)
        if not document.get("results"):
            raise
    if not ({"nccl_version", "config"} <= set(document)):
        raise ImportFailed("JSON, but not of nccl-tests: it has no nccl_version and config")
    config = mapping(document["config"])
    out = Output(
        format=f"json/{clean(document.get('version')) or 'unknown'}",
        op=_op(document.get("args")),
        requested={ours: whole(config.get(theirs)) for ours, theirs in _CONFIG.items()},
        nccl=nccl_version(document["nccl_version"]),
        started=clean(document.get("start_time", "")) or None,
        errors=[clean(e) for e in sequence(document.get("errors")) if clean(e)][:10],
        wrong=_verdict(document),
        recognised=True,
    )
    out.below_minimum = _below_minimum(document)
    found = [_rank(mapping(d)) for d in sequence(config.get("devices"))]
    out.ranks = [r for r in found if r is not None]
    out.rank_count, out.jobs = _counts(out)
    check_rows(len(sequence(document.get("results"))))
    for result in sequence(document.get("results")):
        line = _line(mapping(result))
        if line is None:
            out.malformed += 1
        else:
            out.lines.append(line)
    return out


def _counts(out: Output) -> tuple[int | None, int]:
    """
    Ranks of the run, and how often the same rank is listed.

    One device is listed for each process, or all of them: both give processes times threads
    times GPUs.
    """
    threads, gpus = out.requested["threads"], out.requested["gpus_per_thread"]
    if not out.ranks or not threads or not gpus:
        return None, 1
    group = [r for r in out.ranks if r.group == out.ranks[0].group]
    processes = len({(r.host, r.pid) for r in group})
    return processes * threads * gpus, max(Counter(r.rank for r in out.ranks).values())


def _op(arguments: Any) -> str | None:
    program = clean(next(iter(sequence(arguments)), ""))
    found = re.search(r"(\w+)_perf$", program.rsplit("/", 1)[-1])
    return OPS.get(found[1]) if found else None


def _verdict(document: Mapping[str, Any]) -> str | None:
    """``out_of_bounds``; null or absent where the run died before it."""
    found = mapping(document.get("out_of_bounds"))
    okay = {"true": "OK", "false": "FAILED", True: "OK", False: "FAILED"}
    word = found.get("okay")
    if word == "unchecked":
        return "OK"
    return okay.get(word) if isinstance(word, str | bool) else None


def _below_minimum(document: Mapping[str, Any]) -> bool:
    names = ("average_bus_bandwidth", "average_bus_bandwidith")
    found = next((mapping(document[n]) for n in names if n in document), {})
    return found.get("okay") in ("false", False)


def _rank(device: Mapping[str, Any]) -> Rank | None:
    rank = whole(device.get("rank"))
    if rank is None:
        return None
    return Rank(
        rank=rank,
        group=whole(device.get("group")),
        pid=whole(device.get("pid")),
        host=clean(device.get("hostname")) or None,
        device=whole(device.get("device")),
        pci=clean(device.get("device_hex")),
        name=clean(device.get("device_info")),
    )


def _line(result: Mapping[str, Any]) -> Line | None:
    size, count = whole(result.get("size")), whole(result.get("count"))
    root = clean(result.get("root", "-1"))
    out_of_place = _half(result, "out_of_place")
    in_place = _half(result, "in_place")
    lost = result.get("in_place") is not None and in_place is None
    if size is None or count is None or out_of_place is None or lost:
        return None
    if not re.fullmatch(r"-1|\d{1,6}", root):
        return None
    redop = clean(result.get("redop", "none"))
    return Line(
        size_bytes=size,
        count=count,
        dtype=clean(result.get("type")),
        redop=None if redop in ("none", "") else redop,
        root=None if root == "-1" else int(root),
        out_of_place=out_of_place,
        in_place=in_place,
        timestamp=clean(result.get("timestamp", "")) or None,
    )


def _half(result: Mapping[str, Any], name: str) -> Half | None:
    found = mapping(result.get(name))
    time = _microseconds(found, "time")
    cpu_time = _microseconds(found, "cpu_time")
    algbw, busbw = figure(found.get("alg_bw"), GIGABYTES), figure(found.get("bus_bw"), GIGABYTES)
    wrong = found.get("nwrong")
    if algbw is None or busbw is None or (time is None) == (cpu_time is None):
        return None
    if wrong is not None and whole(wrong) is None:
        return None
    return Half(
        time=time,
        cpu_time=cpu_time,
        algbw=algbw,
        busbw=busbw,
        wrong_count=None if wrong is None else whole(wrong),
        per_iteration=_per_iteration(mapping(result.get(f"{name}_per_iter"))),
    )


def _microseconds(found: Mapping[str, Any], name: str) -> Figure | None:
    return figure(found.get(name), MICROSECONDS)


def _per_iteration(found: Mapping[str, Any]) -> dict[str, object] | None:
    if not found:
        return None
    spread = figure(found.get("cv_pct"), -2)
    named = {"minimum": "min_us", "maximum": "max_us", "p99": "p99_us"}
    times = [_microseconds({"t": t}, "t") for t in sequence(found.get("times_us"))]
    return {
        **{f"{k}_seconds": _value(_microseconds(found, v)) for k, v in named.items()},
        "cv_ratio": _value(spread),
        "samples_seconds": [t.value for t in times if t is not None],
    }


def _value(found: Figure | None) -> float | None:
    return found.value if found else None


def _salvage(text: str) -> dict[str, Any]:
    """What a file that ends too early still holds; rows up to the first incomplete one."""
    decoder = json.JSONDecoder(parse_float=str)
    found: dict[str, Any] = {}
    for key in ("version", "start_time", "args", "nccl_version", "config"):
        start = re.search(rf'"{key}"\s*:\s*', text)
        if start and (value := _decoded(decoder, text, start.end())):
            found[key] = value[0]
    rows = re.search(r'"results"\s*:\s*\[\s*', text)
    at, results = (rows.end() if rows else len(text)), []
    while row := _decoded(decoder, text, at):
        results.append(row[0])
        at = row[1] + 1 if text[row[1] : row[1] + 1] == "," else len(text)
    return {**found, "results": results}


def _decoded(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int] | None:
    if at >= len(text):
        return None
    try:
        return decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
