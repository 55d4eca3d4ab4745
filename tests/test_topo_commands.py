"""The command line over topologies: every format in, every format out, comparisons, captures."""

from __future__ import annotations

import dataclasses
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from documents import check
from report_topologies import hgx
from topobench import cli
from topobench.exporters import nccl_xml
from topobench.importers import hwloc_xml as hwloc_in
from topobench.importers import nccl_xml as nccl_in
from topobench.topology import Topology
from topology_files import HWLOC, NCCL, SMI

TEXTS = {"smi": SMI, "hwloc": HWLOC, "nccl": NCCL, "json": json.dumps(hgx(2).to_json())}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    return cli.main(["topo", *arguments])


@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_every_format_can_be_shown_in_every_other(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text(TEXTS[kind])
    for output in ("tree", "json", "matrix", "svg", "dot", "nccl", "hwloc"):
        code = run("import", "--from", kind, "file", "--format", output)
        out, err = capsys.readouterr()
        assert code == 0, (output, err)
        assert out.strip()
        if output == "svg":
            ElementTree.fromstring(out)


def test_an_imported_topology_is_the_documented_one(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, text in TEXTS.items():
        Path("file").write_text(text)
        assert run("import", "--from", kind, "file", "--format", "json") == 0
        document = json.loads(capsys.readouterr().out)
        if kind != "json":
            check(document, "topology")
            assert document["root"] == f"import:{kind}"


def test_paths_follow_from_an_imported_tree(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text(NCCL)
    assert run("import", "--from", "nccl", "file", "--format", "json") == 0
    topology = Topology.from_json(json.loads(capsys.readouterr().out))
    found = {(p.a, p.b): (p.smi, p.smi_pcie, p.nccl) for p in topology.paths}
    assert found["gpu:0", "gpu:1"] == ("NV4", "PIX", "NVL")
    assert found["gpu:0", "nic:mlx5_0"] == ("SYS", "SYS", "SYS")


def test_two_switches_of_nccls_tree_are_two_bridges(capsys: pytest.CaptureFixture[str]) -> None:
    """NCCL has one element for a switch, so levels of its tree are not levels of the bus."""
    inner = '<pci busid="0000:13:00.0" class="0x060400">'
    text = NCCL.replace('<pci busid="0000:12:00.0"', f'{inner}<pci busid="0000:12:00.0"')
    head, _, tail = text.partition('<nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>')
    text = head + tail.replace("</pci>", "</pci></pci>", 1)
    Path("file").write_text(text)
    assert run("import", "--from", "nccl", "file", "--format", "json") == 0
    topology = Topology.from_json(json.loads(capsys.readouterr().out))
    assert {(p.a, p.b): p.smi_pcie for p in topology.paths}["gpu:0", "gpu:1"] == "PXB"


def test_standard_input_can_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(SMI.encode())))
    assert run("import", "--from", "smi", "-", "--format", "matrix") == 0
    assert capsys.readouterr().out.startswith("\tGPU0\tGPU1\tNIC0\tCPU Affinity")


def test_a_bad_file_is_one_line_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.xml").write_text("<system version='1'><cpu")
    assert run("import", "--from", "nccl", "bad.xml") == 1
    err = capsys.readouterr().err
    assert err.startswith("topobench: bad.xml: line 1: ")
    assert err.count("\n") == 1
    assert run("import", "--from", "nccl", "bad.xml", "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    check(document, "error")
    assert document["schema"] == "topobench.topology/1"


def test_this_host_is_shown_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    readers: dict[str, Callable[[str], object]] = {
        "nccl": nccl_in.parse,
        "hwloc": hwloc_in.parse,
        "svg": ElementTree.fromstring,
    }
    for output in ("matrix", "dot", "svg", "nccl", "hwloc"):
        assert run("show", "--format", output) == 0
        out = capsys.readouterr().out
        readers.get(output, str)(out)


def test_warnings_of_a_format_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("many.json").write_text(json.dumps(hgx(60).to_json()))
    assert run("import", "--from", "json", "many.json", "--format", "nccl") == 0
    out, err = capsys.readouterr()
    assert out == nccl_xml.export(hgx(60)).text
    assert "256" in err


def test_a_capture_shows_as_the_host_it_was_taken_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gather", "host.tgz", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    check(document, "topo-gather")
    assert document["data"]["file"] == "host.tgz"
    assert document["data"]["bytes"] == Path("host.tgz").stat().st_size
    shown = []
    for arguments in ((), ("--root", "host.tgz")):
        assert run("show", *arguments, "--format", "json") == 0
        shown.append(json.loads(capsys.readouterr().out))
    live, replayed = shown
    assert (live.pop("root"), replayed.pop("root")) == ("/", "host.tgz")
    assert live.pop("taken_at") <= replayed.pop("taken_at")
    assert live == replayed
    assert document["data"]["fingerprints"] == live["fingerprints"]


def test_gather_keeps_a_file_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    Path("host.tgz").write_text("precious")
    assert run("gather", "host.tgz") == 1
    assert "exists" in capsys.readouterr().err
    assert Path("host.tgz").read_text() == "precious"


def test_differences_are_told_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    machine = dataclasses.replace(hgx(2).machine, driver="590.1")
    Path("a.json").write_text(json.dumps(hgx(2).to_json()))
    Path("b.json").write_text(json.dumps(dataclasses.replace(hgx(2), machine=machine).to_json()))
    assert run("diff", "a.json", "b.json", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    check(document, "topo-diff")
    assert document["status"] == "differs"
    assert document["data"]["counts"] == {"shape": 0, "config": 1, "health": 0}
    assert document["data"]["changes"][0]["code"] == "driver"
    assert run("diff", "a.json", "b.json") == 0
    assert "driver: 580.159.04, now 590.1" in capsys.readouterr().out


def test_a_difference_is_an_exit_code_only_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("a.json").write_text(json.dumps(hgx(2).to_json()))
    Path("b.json").write_text(json.dumps(hgx(8).to_json()))
    assert run("diff", "a.json", "a.json", "--exit-code") == 0
    assert run("diff", "a.json", "b.json") == 0
    assert run("diff", "a.json", "b.json", "--exit-code") == 1
    capsys.readouterr()
    assert run("diff", "a.json", "b.json", "--exit-code", "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    check(document, "topo-diff")
    assert document["exit_code"] == 1


def test_this_host_a_capture_and_a_document_of_it_are_equal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("gather", "host.tgz") == 0
    capsys.readouterr()
    assert run("show", "--format", "json") == 0
    Path("host.json").write_text(capsys.readouterr().out)
    for a, b in (("live", "host.tgz"), ("host.json", "live"), ("host.tgz", "host.json")):
        assert run("diff", a, b, "--exit-code") == 0
        assert capsys.readouterr().out == "No difference.\n"


def test_what_cannot_be_compared_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("junk.tgz").write_text("junk")
    Path("junk.json").write_text("{")
    for name in ("junk.tgz", "junk.json"):
        assert run("diff", "live", name) == 1
        err = capsys.readouterr().err
        assert name in err
        assert "Traceback" not in err
