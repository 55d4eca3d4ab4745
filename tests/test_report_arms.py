"""What bindings are worth, in the terminal report: effects, null results, what does not apply."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

import report_documents as documents
from topobench.report.arms_text import arms_section
from topobench.report.bindings_text import binding_rows
from topobench.report.notes import environments, notes
from topobench.report.records import Places

GPU = documents.gpu_uuid("gpu01", 0)
NOISE = (1.0, 1.004, 0.997, 1.001, 0.999, 1.002, 0.998, 1.003)
"""Of eight blocks, relative."""


def prefills(
    arms: Mapping[str, Sequence[float]], *, metric: str = "prefill_wall_seconds", **more: Any
) -> list[dict[str, Any]]:
    """A cell for each arm and block with that many seconds."""
    return [
        documents.cell(
            "prefill",
            [documents.reading(metric, seconds, **more)],
            params={"shape": "llama3-8b", "sequence": 2048},
            devices=[GPU],
            binding=documents.binding(arm),
            block=block,
            process_no=block,
        )
        for arm, found in arms.items()
        for block, seconds in enumerate(found)
    ]


def shown(cells: Sequence[Mapping[str, Any]]) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    for part in arms_section(cells):
        console.print(part)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_null_result_says_what_would_have_been_seen() -> None:
    quiet = [0.100 * x for x in NOISE]
    text = shown(prefills({"none": quiet, "local": [x * 1.001 for x in quiet]}))
    assert "prefill wall local none no effect beyond 2.0 % in 1 case -0.1 %" in text
    assert text.endswith("-0.1..-0.1 % 2.0 %")


def test_bindings_stand_side_by_side_with_mean_and_deviation() -> None:
    """0.10 and 0.12 deviate by 0.0141 from their mean; 0.22 and 0.30 by four times that."""
    arms = {"spread": [0.22, 0.30], "none": [0.10, 0.12], "none+p2p_off": [0.5, 0.5]}
    cells = prefills({n: found for n, found in arms.items() if "+" not in n})
    off = [{**c, "arm": "none+p2p_off"} for c in prefills({"none": arms["none+p2p_off"]})]
    rows = list(binding_rows([*cells, *off], Places({"key-gpu01": "gpu01"}, {GPU: "GPU 0"})))
    case = "llama3-8b 1 x 2048 tokens, GPU 0, prefill wall"
    assert rows == [
        [case, "none", "2", "110 ms", "14.1 ms", "110 ms", "-", "-"],
        [case, "spread", "2", "260 ms", "56.6 ms", "260 ms", "236.4 %", "16.00x"],
    ]
    once = list(binding_rows(prefills({"none": [0.1], "local": [0.1]}), Places({})))
    assert [row[4] for row in once] == ["-", "-"], "one process has no deviation"
    assert list(binding_rows(prefills({"none": [0.1, 0.1]}), Places({}))) == []


def test_bindings_under_different_kernels_of_attention_stand_apart() -> None:
    """Another kernel takes twice as long; spread memory costs nothing."""
    cells = prefills({"none": [0.1, 0.1, 0.2], "spread": [0.1, 0.1, 0.2]})
    told = [{"attention": "flash" if cell["block"] < 2 else "math"} for cell in cells]
    rows = binding_rows(
        [{**c, "conditions": t} for c, t in zip(cells, told, strict=True)], Places({})
    )
    assert [(row[1], row[2], row[6]) for row in rows] == [
        ("none, flash", "2", "-"),
        ("spread, flash", "2", "100.0 %"),
        ("none, math", "1", "-"),
        ("spread, math", "1", "100.0 %"),
    ]


def test_an_effect_is_told_with_its_interval() -> None:
    text = shown(
        prefills({"none": [0.1 * x for x in NOISE], "remote": [0.12 * x for x in NOISE[::-1]]})
    )
    assert "remote none worse in 1 of 1 -20.0 %" in text


def test_parts_of_host_work_are_told_apart() -> None:
    """A launch that takes longer is worse, though of a host alone it would be no fault."""
    arms = {"none": [1e-3 * x for x in NOISE], "local": [8e-4 * x for x in NOISE]}
    cells = prefills(arms, metric="host_part_seconds", point={"part": "launch"}, better=0)
    assert "prefill host part launch local none better in 1 of 1 +20.0 %" in shown(cells)


def test_two_blocks_decide_nothing_and_are_left_to_the_tables() -> None:
    assert shown(prefills({"none": [0.1, 0.1], "local": [0.09, 0.09]})) == ""


def test_one_numa_node_is_given_as_the_reason_that_bindings_do_not_apply() -> None:
    reason = "one_numa_node: this host shows one NUMA node, so there is nothing to choose"
    left = [
        {**c, "status": "not_applicable", "reason": reason, "readings": []}
        for c in prefills({"local": [0.0], "remote": [0.0]})
    ]
    text = shown([*prefills({"none": [0.1]}), *left])
    assert text == (
        "prefill, local, remote: not applicable, this host shows one NUMA node, so there is "
        "nothing to choose"
    )
    assert shown(left) == ""


def test_an_environment_that_was_in_force_without_the_arm_is_told() -> None:
    """A site forbids NVLS, so turning it off is worth nothing there: nobody may conclude more."""
    site = {"NCCL_NVLS_ENABLE": "0"}
    arms = {"none/auto": {}, "none/auto+nvls_off": site, "none/auto+p2p_off": {"P2P": "0"}}
    cells = [
        documents.cell("all_reduce", arm=arm, env=env, conditions={"env": {**site, **env}})
        for arm, env in arms.items()
    ]
    told = (
        "none/auto+nvls_off changes nothing here: NCCL_NVLS_ENABLE=0 was in force without it, too"
    )
    assert [t for t in notes(cells) if "changes nothing" in t] == [told]
    free = [
        documents.cell("all_reduce", host="h2", arm=arm, env=env, conditions={"env": env})
        for arm, env in arms.items()
    ]
    now_and_then = [documents.cell("all_reduce", arm="none/auto", conditions={"env": {}})]
    for other in (free, now_and_then):
        _told_of_none([*cells, *other], [*other, *cells])


def _told_of_none(*orders: list[dict[str, Any]]) -> None:
    for several in orders:
        assert not [t for t in notes(several) if "changes nothing" in t]


def test_variables_are_told_of_arms_whose_names_do_not_say_them() -> None:
    arms = {"none/auto+p2p_off": {"NCCL_P2P_DISABLE": "1"}, "none+ENGINE=new": {"ENGINE": "new"}}
    cells = [documents.cell("command", arm=arm, env=env) for arm, env in arms.items()]
    assert environments(cells) == {"none/auto+p2p_off": "NCCL_P2P_DISABLE=1"}
    twice = [*cells, documents.cell("command", arm="none/auto+p2p_off")]
    assert environments(twice) is None
