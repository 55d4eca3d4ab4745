"""NCCL's log: what the real ones say, what ones made by NCCL's rules say, and broken ones."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_logs import made
from topobench import nccl_log
from topobench.errors import ImportFailed
from topobench.nccl_log import Asked, Choice
from topobench.reading import ReasonCode
from topobench.rings import Order, name_of

DATA = Path(__file__).parent / "data/h200x2"
DEFAULT = (DATA / "nccl_2.28.9_debug_default.log").read_text()
WITH_FILE = (DATA / "nccl_2.28.9_debug_graph_file_2ch.log").read_text()


def test_real_log_of_nccls_own_search() -> None:
    """Of rank 0 alone: what it did is known, its rings need the other rank's lines."""
    log = nccl_log.parse([DEFAULT])
    assert (log.version, log.ranks, log.devices) == ("2.28.9", 2, {0: 0})
    assert log.env == {"NCCL_NVLS_ENABLE": "0"}
    assert log.loaded == {}
    assert sorted(log.links) == list(range(24))
    assert set(log.transports) == {"P2P/CUMEM"}
    with pytest.raises(ImportFailed, match="ring 00 has no line of rank 1; 2 ranks take part"):
        nccl_log.rings(log)


def test_real_log_of_a_run_with_a_graph_file() -> None:
    """Both ranks in one text: two channels of the file, repeated to four."""
    log = nccl_log.parse([WITH_FILE])
    assert log.loaded == {0: {2}, 1: {2}}
    assert nccl_log.rings(log) == ((0, 1),) * 4
    assert log.transports == {"P2P/CUMEM": 8}
    asked = ((1, 0), (0, 1))
    assert nccl_log.verify(log, Asked(asked)) is None
    assert nccl_log.verify(log, Asked(asked, (0, 1), 4)) is None
    wrong = nccl_log.verify(log, Asked(asked, channels=24))
    assert wrong is not None
    assert str(wrong) == "ring_mismatch: 24 channels were asked for, NCCL used 4"


FOUR = (0, 2, 1, 3)
EIGHT = ((0, 3, 2, 1, 5, 6, 7, 4), (0, 4, 7, 6, 5, 1, 2, 3), (0, 1, 5, 4, 6, 2, 3, 7))


TWO_HOSTS = ["node1"] * 8 + ["node2"] * 8
SIXTEEN = (
    (*range(8), *range(8, 16)),
    (0, 7, 6, 5, 4, 3, 2, 1, 12, 11, 10, 9, 8, 15, 14, 13),
) * 2


@pytest.mark.parametrize("rings", [(FOUR,), EIGHT], ids=["4 GPUs", "8 GPUs"])
@pytest.mark.parametrize("repeats", [1, 2, 8])
def test_channels_repeated_by_nccl_are_those_of_the_file(
    rings: tuple[Order, ...], repeats: int
) -> None:
    log = nccl_log.parse(made(rings * repeats, loaded=len(rings)))
    assert nccl_log.rings(log) == rings * repeats
    rotated = tuple(ring[3:] + ring[:3] for ring in rings)
    devices = tuple(range(len(rings[0])))
    assert nccl_log.verify(log, Asked(rotated, devices, len(rings) * repeats)) is None


def test_the_three_cycles_of_four_gpus_are_told_apart_whatever_the_channel() -> None:
    """Each in a channel of its own, NCCL repeating them; any two of them changed are noticed."""
    cycles = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2))
    log = nccl_log.parse(made(cycles * 4, loaded=3))
    assert nccl_log.rings(log) == cycles * 4
    assert nccl_log.verify(log, Asked(cycles, (0, 1, 2, 3), 12)) is None
    for other in itertools.permutations(cycles):
        found = nccl_log.verify(log, Asked(other))
        assert (found is None) is (other == cycles)


def test_rings_over_two_hosts_are_rebuilt_from_what_each_host_logged() -> None:
    """Sixteen ranks whose order differs from channel to channel; either host alone proves none."""
    texts = made(SIXTEEN, hosts=TWO_HOSTS)
    parts = [nccl_log.parse(texts[:8]), nccl_log.parse(texts[8:])]
    for log in parts:
        with pytest.raises(ImportFailed, match=r"has no line of rank (0|8); 16 ranks take part"):
            nccl_log.summary(log)
    told = [nccl_log.summary(log, whole=False) for log in parts]
    assert nccl_log.joined(told, 16) == {name_of(ring): 2 for ring in SIXTEEN[:2]}
    assert [(t["channels"], t["transports"]) for t in told] == [
        (4, {"P2P/CUMEM": 28, "NET/IB": 8})
    ] * 2
    assert {t["version"] for t in told} == {"2.28.9"}
    assert all("rings" not in t for t in told)
    with pytest.raises(ImportFailed, match="ring 00 has no line of rank 8; 16 ranks"):
        nccl_log.joined(told[:1], 16)


def test_another_order_is_a_mismatch_that_shows_both() -> None:
    log = nccl_log.parse(made([(0, 1, 2, 3)] * 2, loaded=1))
    reason = nccl_log.verify(log, Asked((FOUR,)))
    assert reason is not None
    assert reason.code is ReasonCode.RING_MISMATCH
    assert reason.text == "channel 0: asked 0-2-1-3, NCCL used 0-1-2-3"


def test_a_reversed_ring_is_another_ring() -> None:
    assert nccl_log.mismatch([(0, 1, 2)], [(0, 2, 1)])
    assert nccl_log.mismatch([(0, 1, 2)], [(1, 2, 0)]) is None


@pytest.mark.parametrize(
    ("logs", "asked", "told"),
    [
        (made(EIGHT[:2], loaded=3), Asked(EIGHT), "3 channels were asked for, NCCL used 2"),
        (made(EIGHT, loaded=0), Asked(EIGHT), "loaded 0 of 3 channels of graph 0 from the file"),
        (made(EIGHT), Asked(EIGHT), "loaded none of 3 channels"),
        (made(EIGHT, loaded=3), Asked(), "loaded 3 channels of graph 0 from a file that a"),
        (made(EIGHT, loaded=3), Asked(EIGHT, loaded=(3, 5)), "loaded 3 of 5 channels of graph 1"),
        (
            made([FOUR], loaded=1, algorithm="TREE"),
            Asked((FOUR,)),
            "an all-reduce of 8192 bytes took TREE, not RING",
        ),
        (
            made([FOUR], loaded=1, devices=(0, 1, 3, 2)),
            Asked((FOUR,), (0, 1, 2, 3)),
            "rank 2 should be on GPU 2 .NVML index., it is on 3",
        ),
    ],
    ids=["dropped", "empty", "no file", "a file", "trees", "tree", "other GPUs"],
)
def test_what_was_not_asked_for_is_a_mismatch(logs: list[str], asked: Asked, told: str) -> None:
    reason = nccl_log.verify(nccl_log.parse(logs), asked)
    assert reason is not None
    assert told.replace(".NVML index.", "(NVML index)") in reason.text


def test_ring_of_a_large_world_is_whole_although_rank_0_cuts_its_line() -> None:
    order = tuple(random.Random(4).sample(range(64), 64))
    start = order.index(0)
    assert nccl_log.rings(nccl_log.parse(made([order]))) == (order[start:] + order[:start],)


def test_summary_is_what_a_run_keeps() -> None:
    log = nccl_log.parse(made([FOUR, FOUR], loaded=2, via="SHM/direct/direct"))
    assert nccl_log.summary(log) == {
        "version": "2.28.9",
        "channels": 2,
        "rings": {"0-2-1-3": 2},
        "algorithms": {"8192": "RING/SIMPLE"},
        "transports": {"SHM": 8},
        "env": {"NCCL_NVLS_ENABLE": "0"},
        "loaded": {"0": [2], "1": [2]},
        "warnings": [],
    }


LINE = "h:1:1 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("version", "line", "choice"),
    [
        ("2.20.5", "8 Bytes -> Algo 1 proto 0 time 7.1", Choice(None, 8, "RING", "LL", None)),
        (
            "2.23.4",
            "AllReduce: 8 Bytes -> Algo 0 proto 2 time 7.1",
            Choice("AllReduce", 8, "TREE", "SIMPLE", None),
        ),
        (
            "2.30.7",
            "AllReduce: 8 Bytes -> Algo NVLS proto LL128 channel{Lo..Hi}={0..15}",
            Choice("AllReduce", 8, "NVLS", "LL128", 16),
        ),
    ],
)
def test_algorithms_are_read_by_version(version: str, line: str, choice: Choice) -> None:
    log = nccl_log.parse([f"NCCL version {version}+cuda12.8\n{LINE}{line}\n"])
    assert (log.version, log.choices) == (version, [choice])


@pytest.mark.parametrize(
    ("via", "kind"),
    [
        ("P2P/CUMEM/read", "P2P/CUMEM"),
        ("P2P/direct pointer", "P2P/direct"),
        ("P2P/IPC", "P2P/IPC"),
        ("SHM/direct/direct", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/IB/3(2)/GDRDMA", "NET/IB"),
    ],
)
def test_transports_are_kinds(via: str, kind: str) -> None:
    for inner in ("", "[send] ", "[receive] "):
        log = nccl_log.parse([f"{LINE}Channel 00/0 : 1[1] -> 0[0] {inner}via {via}\n"])
        assert log.transports == {kind: 1}


def test_sockets_beside_an_active_rdma_port_are_the_wrong_transport() -> None:
    sockets = nccl_log.parse(made([FOUR], via="NET/Socket/0"))
    found = nccl_log.wrong_transport(sockets, rdma_active=True)
    assert found is not None
    assert found.code is ReasonCode.WRONG_TRANSPORT
    assert "4 socket connections" in found.text
    assert nccl_log.wrong_transport(sockets, rdma_active=False) is None
    direct = nccl_log.parse(made([FOUR], via="NET/IB/0/GDRDMA"))
    assert nccl_log.wrong_transport(direct, rdma_active=True) is None


def test_warnings_are_kept_and_say_nothing_else() -> None:
    text = "\n[2026-11-29 10:00:00] h:1:1 [0] graph/xml.cc:9 (f) NCCL WARN Ring 00 : 0 -> 0 -> 0\n"
    log = nccl_log.parse([text])
    assert log.warnings == ["Ring 00 : 0 -> 0 -> 0"]
    assert log.links == {}


def without(logs: list[str], *words: str) -> list[str]:
    """Logs without the lines that hold one of some words."""
    return [
        "".join(
            line for line in text.splitlines(keepends=True) if not any(w in line for w in words)
        )
        for text in logs
    ]


FOUR_LOGS = made([FOUR, FOUR])


@pytest.mark.parametrize(
    ("logs", "told"),
    [
        (without(FOUR_LOGS, "Ring 00 : 0 -> 2"), "ring 00 has no line of rank 2; 4 ranks"),
        (FOUR_LOGS[:3], "ring 00 has no line of rank 3"),
        (without(FOUR_LOGS, "Ring"), "no Ring line; NCCL_DEBUG_SUBSYS lacks GRAPH"),
        (without(FOUR_LOGS, "Ring 00"), "channels \\[1\\] are not all from 0 on"),
        ([t.replace("Ring 00 : 1 -> 3 -> 0", "Ring 00 : 1 -> 3 -> 2") for t in FOUR_LOGS], "back"),
        ([t.replace("Ring 00 : 2 -> 1", "Ring 00 : 3 -> 1") for t in FOUR_LOGS], "disagree"),
        ([t.replace("Ring 00 : 0 -> 2 -> 1", "Ring 00 : 0 -> 2 -> 0") for t in FOUR_LOGS], "join"),
        ([t.replace("Ring 00 : 3 -> 0", "Ring 00 : 1 -> 0") for t in FOUR_LOGS], "not join all"),
    ],
)
def test_incomplete_rings_are_errors(logs: list[str], told: str) -> None:
    with pytest.raises(ImportFailed, match=told):
        nccl_log.rings(nccl_log.parse(logs))


@pytest.mark.parametrize(
    ("logs", "told"),
    [
        ([], "no line of NCCL; NCCL_DEBUG=INFO was not in force"),
        (["some other text\n"], "no line of NCCL"),
        (made([FOUR], version="2.18.5"), "version 2.18.5 writes another log; 2.20 is the first"),
        ([*FOUR_LOGS, *made([FOUR], version="2.30.7")], "versions 2.28.9 and 2.30.7"),
        ([*FOUR_LOGS, *made([(0, 1, 2, 3)] * 2)], "Ring 00 of rank 0 is said to be"),
        ([*FOUR_LOGS, *made([(0, 1)])], "communicators of 4 and of 2 ranks"),
        (made([FOUR], version="2.23.4"), "version 2.23.4 does not write 'AllReduce: 8192 Bytes"),
        ([f"NCCL version 2.20.5\n{LINE}8 Bytes -> Algo 9 proto 0 time 1\n"], "does not write"),
    ],
)
def test_contradictions_are_errors(logs: list[str], told: str) -> None:
    with pytest.raises(ImportFailed, match=told):
        nccl_log.parse(logs)


@given(st.integers(0, 2**32))
def test_damaged_logs_give_an_answer_or_our_error(seed: int) -> None:
    """And a log whose Ring lines are whole still gives the right rings."""
    generator = random.Random(seed)
    text = list("".join(made([FOUR], loaded=1)) if seed % 2 else WITH_FILE)
    for _ in range(generator.randint(1, 10)):
        at = generator.randrange(len(text))
        replacement = generator.choice(["", "9" * 20, "\n", " -> ", "NCCL INFO ", "Bytes", "\x00"])
        text[at : at + generator.randint(0, 5)] = replacement
    try:
        log = nccl_log.parse(["".join(text)])
        nccl_log.summary(log)
        nccl_log.verify(log, Asked((FOUR,), (0, 1, 2, 3), 1))
    except ImportFailed:
        return
    size = log.ranks or len(log.links[0])
    assert all(sorted(ring) == list(range(size)) for ring in nccl_log.rings(log))


@given(st.text(alphabet="RingChanel 0123->:[]\nNCCLINFO", max_size=100))
def test_garbage_gives_our_error(text: str) -> None:
    with pytest.raises(ImportFailed):
        nccl_log.rings(nccl_log.parse([LINE + text]))
