"""Broken and hostile topology files: one clear error of ours, and bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from documents import check
from report_topologies import hgx
from topobench.agents.discover.fingerprint import fingerprints
from topobench.errors import DiscoveryError, ImportFailed
from topobench.exporters import dot, hwloc_xml, matrix, nccl_xml, svg
from topobench.importers import hwloc_xml as hwloc_in
from topobench.importers import nccl_xml as nccl_in
from topobench.importers import own_json, smi_matrix
from topobench.importers import xml_text as xml
from topobench.paths import find_paths
from topobench.topology import Topology
from topology_files import HWLOC, NCCL, SMI

PARSERS = {
    "json": own_json.parse,
    "hwloc": hwloc_in.parse,
    "nccl": nccl_in.parse,
    "smi": smi_matrix.parse,
}
TEXTS = {"json": json.dumps(hgx(2).to_json()), "hwloc": HWLOC, "nccl": NCCL, "smi": SMI}
ODD = ("", "-1", "N/A", "9" * 30, "nan", '"', "<", ">", "&", "\x00", "\ud800", "0-5", "\t", "0x")

effort = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def survives(parse: Callable[[str], Topology], text: str) -> None:
    """The text is refused, or what is read can be written in every format."""
    topology = read(parse, text)
    if topology is None:
        return
    topology = dataclasses.replace(
        topology, taken_at="2026-11-29T00:00:00Z", fingerprints=fingerprints(topology)
    )
    check(json.loads(json.dumps(topology.to_json())), "topology")
    find_paths(topology)
    for module in (dot, matrix, nccl_xml, svg):
        module.export(topology).text.encode("utf-8", "surrogatepass")
    with contextlib.suppress(DiscoveryError):  # no CPU is known
        written = hwloc_xml.export(topology).text
        read(hwloc_in.parse, written)


def read(parse: Callable[[str], Topology], text: str) -> Topology | None:
    """The topology, or None where the text was refused."""
    try:
        return parse(text)
    except ImportFailed:
        return None


@effort
@given(st.sampled_from(sorted(PARSERS)), st.randoms(use_true_random=False))
def test_a_mutated_file_never_breaks_an_importer(kind: str, chance: random.Random) -> None:
    text = TEXTS[kind]
    for _ in range(chance.randint(1, 6)):
        at, length = chance.randrange(len(text) + 1), chance.choice((0, 1, 3, 20, 200))
        start = chance.randrange(len(text) + 1)
        text = chance.choice(
            (
                text[:at] + text[at + length :],
                text[:at] + chance.choice(ODD) + text[at + length :],
                text[:at] + text[start : start + length] + text[at:],
                text[:at],
            )
        )
    survives(PARSERS[kind], text)


@effort
@given(st.sampled_from(["hwloc", "nccl"]), st.randoms(use_true_random=False))
def test_any_value_of_any_attribute_is_survived(kind: str, chance: random.Random) -> None:
    parts = TEXTS[kind].split('"')
    for _ in range(chance.randint(1, 5)):
        index = chance.randrange(1, len(parts), 2)
        parts[index] = chance.choice([p for p in ODD if not set(p) & {'"', "<"}] + parts[1::2])
    survives(PARSERS[kind], '"'.join(parts))


@effort
@given(st.text(max_size=300))
def test_any_text_is_refused_or_read(text: str) -> None:
    for kind, parse in PARSERS.items():
        survives(parse, text)
        survives(parse, TEXTS[kind][:400] + text)


@effort
@given(st.randoms(use_true_random=False))
def test_any_cell_of_the_matrix_is_survived(chance: random.Random) -> None:
    rows = [line.split("\t") for line in SMI.split("\n")]
    for _ in range(chance.randint(1, 5)):
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = chance.choice((*ODD, " X ", "NV4", "SYS", "GPU1"))
    survives(smi_matrix.parse, "\n".join("\t".join(row) for row in rows))


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_a_truncated_file_is_refused(kind: str) -> None:
    for share in (0.0, 0.1, 0.3):
        with pytest.raises(ImportFailed):
            PARSERS[kind](TEXTS[kind][: int(len(TEXTS[kind]) * share)])


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_another_tools_file_is_refused(kind: str) -> None:
    for other, text in TEXTS.items():
        if other != kind:
            with pytest.raises(ImportFailed):
                PARSERS[kind](text)


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_binary_data_is_refused(kind: str) -> None:
    data = bytes(random.Random(1).randrange(256) for _ in range(4096))
    for blob in (data, b"\x7fELF" + data, b"\x00" * 4096, b"\xff\xfe" + data):
        with pytest.raises(ImportFailed):
            PARSERS[kind](blob.decode("utf-8", "replace"))


LAUGHS = (
    '<!DOCTYPE system [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + ']><system version="1"><cpu numaid="&j;"/></system>'
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        '<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/hostname">]>'
        '<system version="1"><cpu numaid="0">&x;</cpu></system>',
        '<!DOCTYPE system [<!ENTITY % x SYSTEM "file:///etc/hostname"> %x;]><system version="1"/>',
        '<!DOCTYPE system SYSTEM "x" [<!ATTLIST cpu numaid CDATA "0">]><system version="1"/>',
    ],
    ids=["laughs", "file", "parameter", "defaults"],
)
def test_xml_that_declares_anything_is_refused(text: str) -> None:
    with pytest.raises(ImportFailed, match="declares"):
        nccl_in.parse(text)


def test_xml_that_is_too_deep_or_has_too_much_of_anything_is_refused() -> None:
    deep = '<system version="1">' + '<pci busid="0">' * (xml.MAX_DEPTH + 1)
    with pytest.raises(ImportFailed, match="deep"):
        nccl_in.parse(deep)
    with pytest.raises(ImportFailed, match="elements"):
        nccl_in.parse('<system version="1">' + "<cpu/>" * (xml.MAX_ELEMENTS + 1) + "</system>")
    with pytest.raises(ImportFailed, match="too long"):
        nccl_in.parse(f'<system version="{"1" * (xml.LONGEST_ATTRIBUTE + 1)}"/>')


def test_an_entity_that_nobody_declared_is_no_xml() -> None:
    with pytest.raises(ImportFailed, match="line 1"):
        nccl_in.parse('<system version="1">&x;</system>')


def test_json_that_is_too_deep_is_refused() -> None:
    with pytest.raises(ImportFailed):
        own_json.parse("[" * 200_000)


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_a_line_of_a_gigabyte_is_refused_in_little_memory(kind: str, tmp_path: object) -> None:
    """In a process of its own that may have no more than 1.5 GiB."""
    code = (
        "import sys, pathlib\n"
        "from topobench import cli\n"
        f"sys.exit(cli.main(['topo', 'import', '--from', '{kind}', sys.argv[1]]))\n"
    )
    file = f"{tmp_path}/line.txt"
    with open(file, "wb") as target:
        target.truncate(1 << 30)
    limit = 1536 << 20
    done = subprocess.run(
        [sys.executable, "-c", code, file],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "MiB" in done.stderr
