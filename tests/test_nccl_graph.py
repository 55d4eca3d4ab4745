"""NCCL's graph files: the real dump, its permutations, and what is refused before a launch."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topobench import nccl_graph
from topobench.errors import ImportFailed

DATA = Path(__file__).parent / "data/h200x2"
DUMP = (DATA / "nccl_2.28.9_graph_dump.xml").read_text()
LOG = (DATA / "nccl_2.28.9_debug_graph_file_2ch.log").read_text()

HEAD = {
    "id": "0",
    "pattern": "4",
    "crossnic": "0",
    "nchannels": "1",
    "speedintra": "20",
    "speedinter": "20",
    "latencyinter": "0",
    "typeintra": "NVL",
    "typeinter": "PIX",
    "samechannels": "1",
}


def graph(*channels: str, **changes: str) -> str:
    """A graph whose channels are lists of devices such as ``0 0x2 0x1``."""
    head = {**HEAD, "nchannels": str(len(channels)), **changes}
    attributes = " ".join(f'{k}="{v}"' for k, v in head.items() if v)
    inner = "".join(
        "<channel>" + "".join(f'<gpu dev="{d}"/>' for d in c.split()) + "</channel>"
        for c in channels
    )
    return f"<graph {attributes}>{inner}</graph>"


def tree(*channels: str, **changes: str) -> str:
    return graph(*channels, id="1", pattern="1", **changes)


def document(*graphs: str) -> str:
    return f'<graphs version="1">{"".join(graphs)}</graphs>'


FOUR = "0 0x1 0x2 0x3"
GOOD = document(graph(FOUR, FOUR), tree(FOUR, FOUR))


def test_real_dump_is_read_and_written_back_letter_by_letter() -> None:
    graphs = nccl_graph.parse(DUMP)
    assert [(g.id, len(g.channels)) for g in graphs] == [(0, 12), (1, 12), (4, 0), (2, 0), (3, 0)]
    assert graphs[0].channels == ((0, 1),) * 12
    assert graphs[1].channels == ((0, 1),) * 6 + ((1, 0),) * 6
    assert graphs[0].settings["speedintra"] == "30"
    assert nccl_graph.render(graphs) == DUMP


def test_dump_of_a_run_with_a_file_is_that_file() -> None:
    """The second real dump: NCCL was given two channels, one against the other."""
    text = LOG[LOG.index("<graphs") :]
    graphs = nccl_graph.parse(text)
    assert nccl_graph.rings(graphs) == ((1, 0), (0, 1))
    assert nccl_graph.render(graphs) == text


def test_reinjected_dump_is_its_rings_and_trees_unchanged() -> None:
    graphs = nccl_graph.reinjected(nccl_graph.parse(DUMP))
    nccl_graph.check(graphs, (0, 1))
    head, tail = DUMP[: DUMP.index('  <graph id="4"')], "</graphs>\n"
    assert nccl_graph.render(graphs) == head + tail


def test_channels_that_nccl_itself_drops_are_not_given_back() -> None:
    """Its search may find fewer trees than rings; it then uses as many rings as trees."""
    graphs = nccl_graph.parse(document(graph(FOUR, FOUR, FOUR), tree(FOUR, FOUR)))
    found = nccl_graph.reinjected(graphs)
    nccl_graph.check(found, (0, 1, 2, 3))
    assert [len(g.channels) for g in found] == [2, 2]
    assert nccl_graph.parse(nccl_graph.render(found)) == found


def test_permuted_dump_keeps_channels_speeds_and_types() -> None:
    graphs = nccl_graph.parse(GOOD)
    found = nccl_graph.permuted(graphs, [(0, 2, 1, 3)])
    nccl_graph.check(found, (0, 1, 2, 3))
    assert nccl_graph.rings(found) == ((0, 2, 1, 3),) * 2
    assert [g.settings for g in found] == [g.settings for g in graphs]
    assert nccl_graph.permuted(found, [(0, 1, 2, 3)]) == graphs


def test_permuted_rings_keep_their_directions_and_trees_are_exchanged_alike() -> None:
    backward = "0x2 0x1 0 0x3"  # 0 3 2 1, begun elsewhere
    graphs = nccl_graph.parse(document(graph(FOUR, backward), tree(FOUR, "0x3 0x2 0x1 0")))
    ring, trees = nccl_graph.permuted(graphs, [(0, 2, 1, 3)])
    assert ring.channels == ((0, 2, 1, 3), (0, 3, 1, 2))
    assert trees.channels == ((0, 2, 1, 3), (3, 1, 2, 0))


def test_different_rings_all_become_the_order() -> None:
    graphs = nccl_graph.parse(document(graph(FOUR, "0 0x2 0x1 0x3"), tree(FOUR, FOUR)))
    assert nccl_graph.rings(nccl_graph.permuted(graphs, [(0, 1, 3, 2)])) == ((0, 1, 3, 2),) * 2


def test_several_orders_are_the_channels_in_turn_trees_too() -> None:
    graphs = nccl_graph.parse(document(graph(*[FOUR] * 3), tree(*[FOUR] * 3)))
    one, two = (0, 2, 1, 3), (0, 1, 3, 2)
    ring, trees = nccl_graph.permuted(graphs, [one, two])
    assert ring.channels == trees.channels == (one, two, one)
    nccl_graph.check((ring, trees), range(4))
    with pytest.raises(ImportFailed, match="4 orders need as many channels; NCCL found 3"):
        nccl_graph.permuted(graphs, [one, two] * 2)


def test_devices_above_nine_are_hexadecimal() -> None:
    sixteen = " ".join(["0", *(f"{d:#x}" for d in range(1, 16))])
    graphs = nccl_graph.parse(document(graph(sixteen), tree(sixteen)))
    assert nccl_graph.rings(graphs) == (tuple(range(16)),)
    assert '<gpu dev="0xa"/>' in nccl_graph.render(graphs)
    with pytest.raises(ImportFailed, match="dev='10' of <gpu> is not written as 0x"):
        nccl_graph.parse(document(graph("0 10")))


def test_rank_that_newer_nccl_writes_is_left_out() -> None:
    """It holds for one node only, and would be used without any check."""
    text = GOOD.replace('dev="0x3"', 'dev="0x3" rank="3"')
    assert nccl_graph.parse(text) == nccl_graph.parse(GOOD)
    assert "rank" not in nccl_graph.render(nccl_graph.parse(text))


def test_ranks_in_a_file_must_be_those_of_its_gpus() -> None:
    """NCCL 2.30 and newer take the rank and never look at dev again."""
    text = GOOD.replace('dev="0x3"', 'dev="0x3" rank="3"')
    nccl_graph.check_ranks(text, (0, 1, 2, 3))
    nccl_graph.check_ranks(GOOD, (3, 2, 1, 0))
    for devices in ((3, 2, 1, 0), (0, 1, 2)):
        with pytest.raises(ImportFailed, match="dev=0x3 has rank=3, and its GPU has another"):
            nccl_graph.check_ranks(text, devices)


def test_network_devices_are_read_and_not_given_to_one_host() -> None:
    net = '<channel><net dev="0"/><gpu dev="0"/><gpu dev="0x1"/><net dev="0x1"/></channel>'
    text = document(re.sub("<channel>.*</channel>", net, graph("0 0x1")))
    (found,) = nccl_graph.parse(text)
    assert (found.channels, found.nets) == (((0, 1),), ((0, 1),))
    assert nccl_graph.parse(nccl_graph.render([found])) == (found,)
    both = (found, *nccl_graph.parse(document(tree("0 0x1"))))
    with pytest.raises(ImportFailed, match="names network devices; all its GPUs are in one host"):
        nccl_graph.check(both, (0, 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file ends too early"),
        ("<!-- nothing -->", "the file ends too early"),
        (GOOD[:-9], "the file ends too early"),
        ('<?xml version="1.0"?>' + GOOD, "line 1: NCCL's parser cannot read .*no <[?]xml"),
        (GOOD.replace("<graph ", "\n\t<graph "), "a tab"),
        (GOOD.replace('id="0" ', 'id="0"  '), 'cannot read \'<graph id="0"  pattern'),
        (GOOD.replace('id="0" ', 'id="0"\n'), "cannot read"),
        (GOOD.replace("graphs", "system"), "the first tag is <system>"),
        (GOOD.replace('<graphs version="1"', '<graphs version="2"'), "version is '2'"),
        (GOOD.replace('<graphs version="1"', "<graphs"), "version is None"),
        (GOOD + "<graphs>", "<graphs> stands after </graphs>"),
        (GOOD.replace('nchannels="2"', 'nchannels="3"', 1), "says nchannels=3 and has 2"),
        (GOOD.replace('nchannels="2"', 'nchannels="x"', 1), "nchannels='x' is no whole number"),
        (GOOD.replace(' typeintra="NVL"', "", 1), "<graph> lacks typeintra"),
        (GOOD.replace('id="0"', 'id="0" fast="1"'), "unknown attribute fast"),
        (GOOD.replace('id="0"', 'id="0" id="1"'), "names an attribute twice"),
        (GOOD.replace('"NVL"', f'"{"N" * 256}"', 1), "longer than 255 characters"),
        (GOOD.replace('dev="0x3"', 'dev="3x"', 1), "dev='3x'"),
        (GOOD.replace('<gpu dev="0x3"/>', "<gpu/>", 1), "dev='' of <gpu>"),
        (GOOD.replace('<gpu dev="0x3"/>', '<nic dev="0x3"/>', 1), "<nic/> stands where <gpu"),
        (GOOD.replace("channel>", "chain>"), "stands where a <channel> is expected"),
        ("a" * (nccl_graph.MAX_TEXT + 1), "are no graph file"),
    ],
)
def test_text_that_nccl_would_misread_is_refused(text: str, told: str) -> None:
    with pytest.raises(ImportFailed, match=told):
        nccl_graph.parse(text)


MANY = [FOUR] * 33


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (document(graph(FOUR)), r"graph 1 \(tree\) is there 0 times"),
        (document(tree(FOUR)), r"graph 0 \(ring\) is there 0 times"),
        (document(graph(FOUR), graph(FOUR), tree(FOUR)), "is there 2 times"),
        (document(graph(FOUR), tree(FOUR), graph(FOUR, id="3")), "graph 3 is there, too"),
        (document(graph(FOUR), tree(FOUR, FOUR)), "1 channels and graph 1 has 2"),
        (document(graph(), tree()), "has 0 channels; NCCL would take its own search"),
        (document(graph(*MANY), tree(*MANY)), "has 33 channels; NCCL would write beyond"),
        (document(graph(FOUR, pattern="1"), tree(FOUR)), "pattern 1; it takes 4"),
        (document(graph(FOUR), tree(FOUR, typeinter="C2C")), "'C2C', which NCCL would take for"),
        (document(graph(FOUR, crossnic="7"), tree(FOUR)), "crossnic='7'"),
        (document(graph(FOUR, speedintra="0"), tree(FOUR)), "could choose no algorithm"),
        (document(graph(FOUR, speedintra="nan"), tree(FOUR)), "speedintra='nan' is no number"),
        (document(graph(FOUR, speedintra="4_8"), tree(FOUR)), "speedintra='4_8' is no number"),
        (document(graph(FOUR, speedinter="-1"), tree(FOUR)), "speedinter=-1"),
        (document(graph("0 0x1 0x2"), tree(FOUR)), "lacks the GPU 3"),
        (document(graph("0 0x1 0x2 0x3 0x1"), tree(FOUR)), "has the GPU 1 twice"),
        (document(graph(FOUR), tree("0 0x1 0x2 0x10")), "GPU 16, which does not take part"),
    ],
)
def test_graphs_that_nccl_would_handle_silently_are_refused(text: str, told: str) -> None:
    with pytest.raises(ImportFailed, match=told):
        nccl_graph.check(nccl_graph.parse(text), (0, 1, 2, 3))


def test_a_file_of_others_may_hold_what_nccl_takes_no_harm_from() -> None:
    """More trees than rings, graphs of collectives in the network, and heads of an NVSwitch."""
    heads = graph("0", "0x1", "0x2", "0x3", id="3", pattern="5", speedinter="0")
    none = graph(id="4", pattern="6", speedintra="0")
    text = document(graph(FOUR), tree(FOUR, FOUR), graph(FOUR, id="2", pattern="3"), heads, none)
    graphs = nccl_graph.parse(text)
    nccl_graph.check(graphs, (0, 1, 2, 3), own=False)
    with pytest.raises(ImportFailed, match="only graphs 0 and 1 may be given; graph 2, 3, 4 is"):
        nccl_graph.check(graphs, (0, 1, 2, 3))
    with pytest.raises(ImportFailed, match="has the GPU 2, which does not take part"):
        nccl_graph.check(graphs, (0, 1), own=False)
    for wrong, told in (
        (graph("0 0x1 0x2 0x3 0x1", id="2", pattern="3"), "has the GPU 1 twice"),
        (graph("0 0x1 0x2", id="2", pattern="3"), "lacks the GPU 3"),
        (graph(FOUR, id="7"), "graph 7 is unknown, or there more than once"),
        (heads + heads, "graph 3 is unknown, or there more than once"),
    ):
        other = nccl_graph.parse(document(graph(FOUR), tree(FOUR), wrong))
        with pytest.raises(ImportFailed, match=told):
            nccl_graph.check(other, (0, 1, 2, 3), own=False)


def test_crossing_network_cards_is_refused_where_it_is_switched_off() -> None:
    graphs = nccl_graph.parse(document(graph(FOUR, crossnic="1"), tree(FOUR)))
    nccl_graph.check(graphs, (0, 1, 2, 3))
    with pytest.raises(ImportFailed, match="NCCL_CROSS_NIC=0 is set: NCCL would skip it"):
        nccl_graph.check(graphs, (0, 1, 2, 3), cross_nic=False)


def test_orders_of_other_gpus_are_refused() -> None:
    with pytest.raises(ImportFailed, match="GPU 3, which does not take part"):
        nccl_graph.permuted(nccl_graph.parse(GOOD), [(0, 1, 2)])
    with pytest.raises(ImportFailed, match=r"graph 0 \(ring\) is there 0 times"):
        nccl_graph.permuted((), [(0, 1)])


@given(st.text(alphabet='<>/=" \n\t0123xgpudevchanlrst!-', max_size=80))
def test_garbage_gives_our_error_only(text: str) -> None:
    with pytest.raises(ImportFailed):
        nccl_graph.parse(text)


@given(st.integers(0, 2**32))
def test_damaged_dumps_are_read_or_give_our_error(seed: int) -> None:
    generator = random.Random(seed)
    text = list(DUMP)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(text))
        text[at : at + generator.randint(0, 3)] = generator.choice(["", '"', "<", "/>", "0", "x"])
    try:
        found = nccl_graph.parse("".join(text))
        nccl_graph.permuted(found, [(1, 0)])
    except ImportFailed:
        return
    assert all(sorted(c) == [0, 1] for c in nccl_graph.rings(found))
