"""Captures: what gather writes replays as it was, tells no secrets, and is read with care."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import re
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_nvml import FakeNvml
from made_machine import GPU, NIC, add_cpus, add_pci, configuration, write
from topobench.agents import capture, gather_filter
from topobench.agents.capture import opened
from topobench.agents.discover import NvmlFacts, discover, read_nvml
from topobench.agents.discover.facts import GpuFacts
from topobench.agents.gather import RecordingTree, gather
from topobench.agents.gather_filter import Scrubber
from topobench.errors import DiscoveryError
from topobench.topology import Topology
from topology_files import SHARED

SERIAL = "0xC0FFEE1234"


def same(a: Topology, b: Topology) -> None:
    """Equal in all but when and where they were read."""
    first, second = a.to_json(), b.to_json()
    for key in ("taken_at", "root"):
        first.pop(key), second.pop(key)
    assert first == second


def replayed(tarball: Path) -> Topology:
    with opened(tarball) as folder:
        return discover(folder)


def members(tarball: Path) -> dict[str, bytes]:
    """Name (and target of a link) -> content."""
    found = {}
    with tarfile.open(tarball) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            found[f"{member.name} {member.linkname}"] = file.read() if file else b""
    return found


def identities() -> set[str]:
    """What would tell which machine this is."""
    names = {socket.gethostname(), socket.getfqdn(), os.uname().nodename}
    found = {n for n in names if len(n) > 3}
    files = [*Path("/sys/class/net").glob("*/address"), Path("/etc/machine-id")]
    files += [Path(f"/sys/class/dmi/id/{n}") for n in ("product_uuid", "product_serial")]
    files += [Path(f"/sys/class/dmi/id/{n}") for n in ("board_serial", "chassis_serial")]
    files.append(Path("/proc/sys/kernel/random/boot_id"))
    for file in files:
        try:
            text = file.read_text().strip().lower()
        except OSError:
            continue
        if len(text) > 5 and set(text) - set("0:-"):
            found |= {text, text.replace(":", ""), text.replace("-", "")}
    return found


def test_this_host_replays_as_it_is(tmp_path: Path) -> None:
    done = gather(tmp_path / "host.tgz")
    same(replayed(tmp_path / "host.tgz"), done.topology)
    same(done.topology, discover())


def test_the_archive_of_this_host_names_nobody(tmp_path: Path) -> None:
    gather(tmp_path / "host.tgz")
    secrets = identities()
    assert secrets, "this machine has nothing that tells which it is"
    for name, content in members(tmp_path / "host.tgz").items():
        text = f"{name}\n".encode().lower() + content.lower()
        for secret in secrets:
            assert secret.encode().lower() not in text, name


def test_the_same_host_gives_the_same_bytes(tmp_path: Path) -> None:
    gather(tmp_path / "a.tgz")
    gather(tmp_path / "b.tgz")
    first, second = (members(tmp_path / n) for n in ("a.tgz", "b.tgz"))
    volatile = {n for n in first if re.search("meminfo|cpu.stat|memory|cpuinfo|vmstat", n)}
    assert {n: c for n, c in first.items() if n not in volatile} == {
        n: c for n, c in second.items() if n not in volatile
    }


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "host.tgz").write_text("precious")
    with pytest.raises(DiscoveryError, match="exists"):
        gather(tmp_path / "host.tgz")
    assert (tmp_path / "host.tgz").read_text() == "precious"


def machine(root: Path) -> Path:
    """Two nodes; a GPU and a NIC below a switch; files that tell more than they should."""
    add_cpus(root, [[0, 1], [2, 3]])
    port = "pci0000:00/0000:00:01.0"
    add_pci(root, port, node=0)
    add_pci(root, f"{port}/0000:01:00.0", node=0)
    add_pci(root, f"{port}/0000:01:00.0/0000:02:00.0", node=0)
    add_pci(root, f"{port}/0000:01:00.0/0000:02:00.0/0000:03:00.0", GPU, node=0)
    card = add_pci(root, "pci0000:80/0000:80:00.0", NIC, node=1)
    for folder, name in (("net", "enx001122334455"), ("net", "eth0")):
        base = f"{card.relative_to(root)}/{folder}/{name}"
        write(root, f"{base}/address", "00:11:22:33:44:55")
        write(root, f"{base}/operstate", "up")
        (root / base / "device").symlink_to("../..")
        (root / "sys/class/net").mkdir(parents=True, exist_ok=True)
        (root / "sys/class/net" / name).symlink_to(f"../../../{base}")
    write(root, "sys/class/dmi/id/sys_vendor", "Maker")
    write(root, "sys/class/dmi/id/product_serial", SERIAL)
    write(root, "proc/version", "Linux version 6.8.0 (builder@secret-host) #1")
    write(root, "proc/sys/kernel/hostname", "secret-host")
    write(root, "proc/cmdline", f"root=UUID={SERIAL} iommu=pt ip=::secret-host")
    pod = "kubepods-pod11112222333344445555.slice"
    write(root, "proc/self/cgroup", f"0::/{pod}/cri-containerd-{SERIAL}.scope")
    mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\nserver:/home/secret-host /home nfs rw 0 0"
    write(root, "proc/self/mounts", mounts)
    write(root, f"sys/fs/cgroup/{pod}/cpuset.cpus.effective", "0-2")
    write(root, "proc/self/status", "Name:\tsecret-host\nCpus_allowed_list:\t0-3")
    write(root, "etc/os-release", f'PRETTY_NAME="Test OS"\nBUILD_ID={SERIAL}')
    write(root, "etc/topobench/numa.yaml", "0000:80:00.0: 1  # secret-host")
    driver = "proc/driver/nvidia/gpus/0000:03:00.0/information"
    write(root, driver, f"Model: \t\t NVIDIA H100\nSerial: \t {SERIAL}\nBus Location: 0000:03:00.0")
    return root


def test_a_made_machine_replays_without_what_it_should_not_tell(tmp_path: Path) -> None:
    root = machine(tmp_path / "m")
    before = discover(root)
    done = gather(tmp_path / "m.tgz", root)
    after = replayed(tmp_path / "m.tgz")
    same(done.topology, before)
    assert before.cpus.allowed == after.cpus.allowed == "0-2"
    assert before.machine.container == after.machine.container == "kubernetes"
    named = tuple(dataclasses.replace(n, name="x", interfaces=()) for n in before.nics)
    again = tuple(dataclasses.replace(n, name="x", interfaces=()) for n in after.nics)
    assert len(named) == 2
    assert named == again
    same(
        dataclasses.replace(before, nics=(), paths=()),
        dataclasses.replace(after, nics=(), paths=()),
    )
    for name, content in members(tmp_path / "m.tgz").items():
        for secret in ("secret-host", SERIAL, "001122334455", "00:11:22", "1111222233334444"):
            assert secret.encode() not in name.encode() + content, name


def test_a_capture_can_be_gathered_again(tmp_path: Path) -> None:
    gather(tmp_path / "a.tgz", machine(tmp_path / "m"))
    with opened(tmp_path / "a.tgz") as folder:
        gather(tmp_path / "b.tgz", folder)
    assert members(tmp_path / "a.tgz") == members(tmp_path / "b.tgz")


def test_only_what_was_read_is_kept(tmp_path: Path) -> None:
    root = machine(tmp_path / "m")
    write(root, "sys/bus/pci/unread", "x")
    write(root, "home/user/notes", "x")
    gather(tmp_path / "m.tgz", root)
    names = " ".join(members(tmp_path / "m.tgz"))
    assert "unread" not in names
    assert "home" not in names


def test_nvmls_answers_and_cudas_order_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path / "m")
    facts = NvmlFacts(
        driver="580.1",
        gpus=(GpuFacts(0, pci_address="0000:03:00.0", uuid="GPU-1", model="NVIDIA H100"),),
    )
    write(root, "topobench/nvml.json", json.dumps(facts.to_json()))
    write(root, "topobench/environment.json", json.dumps({"CUDA_VISIBLE_DEVICES": "0"}))
    done = gather(tmp_path / "m.tgz", root)
    after = replayed(tmp_path / "m.tgz")
    assert [(g.uuid, g.cuda_index) for g in after.gpus] == [("GPU-1", 0)]
    assert done.topology.gpus == after.gpus


def test_a_live_hosts_answers_go_into_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeNvml([{"DeviceGetUUID": "GPU-live", "DeviceGetName": "NVIDIA H100"}])
    facts = read_nvml(library)
    monkeypatch.setattr("topobench.agents.gather.read_nvml", lambda: facts)
    done = gather(tmp_path / "host.tgz")
    assert [g.uuid for g in done.topology.gpus] == ["GPU-live"]
    same(replayed(tmp_path / "host.tgz"), done.topology)


def test_a_configuration_space_keeps_port_and_acs_but_no_serial_number() -> None:
    space = bytearray(configuration(port_type=6, acs_control=0x1D))
    acs, serial = 0x148, 0x200
    space[acs : acs + 4] = (0x000D | 1 << 16 | serial << 20).to_bytes(4, "little")
    space[serial : serial + 12] = b"\x03\x00\x01\x00\xde\xad\xbe\xef\x01\x02\x03\x04"
    kept = gather_filter._config(bytes(space))
    assert len(kept) == len(space)
    for start, end in ((0, 64), (0x60, 0x9C), (0x100, 0x104), (acs, acs + 8), (serial, serial + 4)):
        assert kept[start:end] == space[start:end]
    assert kept[serial + 4 :] == bytes(len(space) - serial - 4)


def test_a_loop_in_a_configuration_space_ends() -> None:
    space = bytearray(4096)
    space[6], space[0x34], space[0x40], space[0x41] = 0x10, 0x40, 0x10, 0x40
    space[0x100:0x104] = (0x000D | 0x100 << 20).to_bytes(4, "little")
    assert len(gather_filter._config(bytes(space))) == 4096


def test_a_control_groups_name_keeps_only_what_tells_of_a_container(tmp_path: Path) -> None:
    root = machine(tmp_path)
    scrubber = Scrubber(RecordingTree.open(root), discover(root))
    assert list(scrubber.groups.values()) == ["kubepods0", "containerd1"]
    assert scrubber.name("sys/fs/cgroup/kubepods-pod11112222333344445555.slice/cpu.max") == (
        "sys/fs/cgroup/kubepods0/cpu.max"
    )


Fill = Callable[[tarfile.TarFile], None]


def tarball(path: Path, fill: Fill, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        fill(archive)
    return path


def member(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "sys/../../outside", "a/" * 70 + "b"]
)
def test_a_member_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        member(archive, "sys/x", b"1")
        member(archive, name, b"1")

    file = tarball(tmp_path / "bad.tgz", fill)
    with pytest.raises(DiscoveryError, match=r"leads out|too long"), opened(file):
        pass
    assert not (tmp_path / "outside").exists()


def test_links_stay_inside_and_nothing_is_written_through_them(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()

    def fill(archive: tarfile.TarFile) -> None:
        member(archive, "sys/kept", b"1")
        member(archive, "sys/out", type=tarfile.SYMTYPE, linkname="../../../../../../etc")
        member(archive, "sys/abs", type=tarfile.SYMTYPE, linkname="/etc")
        member(archive, "trap", type=tarfile.SYMTYPE, linkname=str(victim))
        member(archive, "trap/planted", b"1")
        member(archive, "hard", type=tarfile.LNKTYPE, linkname="/etc/passwd")
        member(archive, "pipe", type=tarfile.FIFOTYPE)

    with opened(tarball(tmp_path / "bad.tgz", fill)) as folder:
        assert not os.path.lexists(folder / "sys/out")
        assert os.readlink(folder / "sys/abs") == "../etc"
        assert not (folder / "trap").is_symlink()
        assert not os.path.lexists(folder / "hard")
        assert not os.path.lexists(folder / "pipe")
    assert list(victim.iterdir()) == []


def test_a_bomb_is_refused_before_it_goes_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(capture, "LARGEST_MEMBER", 1 << 18)
    monkeypatch.setattr(capture, "MOST_MEMBERS", 50)

    def large(archive: tarfile.TarFile) -> None:
        member(archive, "sys/zeros", b"\0" * (1 << 19))

    def many(archive: tarfile.TarFile) -> None:
        for i in range(60):
            member(archive, f"sys/{i}")

    def total(archive: tarfile.TarFile) -> None:
        for i in range(10):
            member(archive, f"sys/{i}", b"\0" * (1 << 17))

    for fill, words in ((large, "bytes"), (many, "members"), (total, "MiB")):
        file = tarball(tmp_path / f"{words}.tgz", fill)
        with pytest.raises(DiscoveryError, match=words), opened(file):
            pass


def test_a_header_of_endless_length_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "MOST_BYTES", 1 << 20)
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    data = info.tobuf() + b"\0" * (1 << 20)
    (tmp_path / "pax.tgz").write_bytes(gzip.compress(data))
    with pytest.raises(DiscoveryError, match="MiB"), opened(tmp_path / "pax.tgz"):
        pass


@pytest.mark.parametrize(
    "data",
    [b"", b"junk" * 99, b"\x1f\x8b" + b"junk" * 9, b"BZh9junk", gzip.compress(b"x" * 600, mtime=0)],
    ids=["empty", "junk", "gzip head", "bzip2 head", "gzip of no tar"],
)
def test_what_is_no_tarball_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(DiscoveryError, match=r"bad: .*topo import"), opened(tmp_path / "bad"):
        pass


def test_a_pipe_in_place_of_a_tarball_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    with pytest.raises(DiscoveryError, match="a pipe, not a file"), opened(tmp_path / "p"):
        pass


def test_a_truncated_tarball_is_refused(tmp_path: Path) -> None:
    gather(tmp_path / "m.tgz", machine(tmp_path / "m"))
    data = (tmp_path / "m.tgz").read_bytes()
    (tmp_path / "cut.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DiscoveryError, match=r"cut\.tgz"), opened(tmp_path / "cut.tgz"):
        pass


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2"])
def test_tarballs_with_one_folder_around_the_machine_are_read(mode: str, tmp_path: Path) -> None:
    root = machine(tmp_path / "m")
    file = tarball(tmp_path / "m.tar", lambda archive: archive.add(root, "host-7"), mode)
    same(replayed(file), discover(root))


@pytest.mark.parametrize(
    "name", ["nvidiagpunumanodes", "32amd64-4s2n4c-cgroup2", "40intel64-2g2n4c+pcilocality"]
)
def test_machines_captured_by_others_replay_from_what_was_read_of_them(
    name: str, tmp_path: Path
) -> None:
    """GPU memory as NUMA nodes, control groups of both versions, 37 PCI functions."""
    file = SHARED / "hwloc_linux" / f"{name}.tar.bz2"
    if not file.exists():
        pytest.skip(f"no captured machine {file}")
    with opened(file) as folder:
        done = gather(tmp_path / "again.tgz", folder)
    same(replayed(tmp_path / "again.tgz"), done.topology)
    assert (tmp_path / "again.tgz").stat().st_size < file.stat().st_size
