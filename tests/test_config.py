from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planning import host, small
from topobench import config
from topobench.config import (
    BindingChoice,
    ClusterConfig,
    HostExpectation,
    Overrides,
    ProbeChoice,
    RayConfig,
)
from topobench.config_arms import BUILT_IN_BINDINGS, RING_NAMES
from topobench.errors import ConfigError
from topobench.masking import mask_urls
from topobench.probes import registry
from topobench.probes.protocol import fields_of
from topobench.reading import MemoryPolicy

ROOT = Path(__file__).parent.parent
KIND = "kind: topobench/v1\n"

EXAMPLE = """\
kind: topobench/v1
name: lab
ray: {address: 10.9.0.10:6379, require_token: yes}
store: postgresql+psycopg://bench:s3cret@db/topobench
profile: standard
hosts:
  - {host: 10.9.0.10, id: rack1-a, gpus: 8, sku: h200-sxm8, labels: {rack: r1}, env: {A: "1"}}
  - 10.9.0.11
probes: [host_memory, {all_reduce: {bytes: [8K, 1 MiB, 1e9], ranks: 2}}]
bindings: [none, local, {name: pinned, cpus: "0-3,8", memory: "bind:0"},
           {name: nodes, cpus: "node:0,1", memory: "interleave:0-1"}, {name: cpus_only, cpus: 1}]
rings: [auto, best, [0, 2, 1, 3]]
env: {NCCL_IB_HCA: mlx5, EMPTY: ""}
devices: [0000:01:00.0, 0000:17:00.0, 81:00.0, 3]
budget: 10m
seed: 7
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(text, "utf-8")
    return path


def load(tmp_path: Path, text: str, **flags: object) -> ClusterConfig:
    overrides = Overrides(**flags)  # type: ignore[arg-type]
    return config.load(written(tmp_path, text), overrides=overrides, environ={})


def mistakes(tmp_path: Path, text: str, **flags: object) -> list[str]:
    """The mistakes of a file, without the folder it lies in."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **flags)
    return [line.removeprefix(f"{tmp_path}/") for line in caught.value.mistakes]


def test_every_key_of_the_example_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, EXAMPLE)
    standard = config.profiles()["standard"]
    assert found == ClusterConfig(
        name="lab",
        ray=RayConfig("10.9.0.10:6379", ship=False, require_token=True),
        store="postgresql+psycopg://bench:s3cret@db/topobench",
        profile="standard",
        processes=standard.processes,
        blocks=standard.blocks,
        probes=(
            ProbeChoice("host_memory", {"op": ("copy", "latency")}),
            ProbeChoice(
                "all_reduce",
                {"bytes": (8192, 2**20, 10**9), "ranks": (2,), "hosts": ("one", "all")},
            ),
        ),
        bindings=(
            BindingChoice("none"),
            BindingChoice("local"),
            BindingChoice("pinned", "0-3,8", (), MemoryPolicy.BIND, (0,)),
            BindingChoice("nodes", None, (0, 1), MemoryPolicy.INTERLEAVE, (0, 1)),
            BindingChoice("cpus_only", "1"),
        ),
        rings=("auto", "best", (0, 2, 1, 3)),
        hosts=(
            HostExpectation("10.9.0.10", "rack1-a", 8, "h200-sxm8", {"rack": "r1"}, {"A": "1"}),
            HostExpectation("10.9.0.11"),
        ),
        devices=("0000:01:00.0", "0000:17:00.0", "81:00.0", "3"),
        env={"NCCL_IB_HCA": "mlx5", "EMPTY": ""},
        budget_seconds=600.0,
        seed=7,
    )


def test_without_a_file_the_defaults_are_this_host_and_a_sqlite_file() -> None:
    found = config.load(None, environ={})
    quick = config.profiles()["quick"]
    assert (found.name, found.store, found.ray.address) == (
        "local",
        "sqlite:///topobench.db",
        "local",
    )
    assert found.probes == quick.probes
    assert [b.name for b in found.bindings] == ["none", "local", "spread"]
    assert (found.processes, found.blocks, found.budget_seconds, found.seed) == (1, 0, None, None)


@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE,
        KIND,
        KIND + "probes: []\nbindings: [none]\n",
        KIND + "profile: full\n",
        KIND + "rings: [auto, {orders: [[0, 1, 2], [0, 2, 1]], force: yes}, {orders: [[0, 1]]}]\n",
        KIND + "profile: full\none_binding: []\n",
        KIND + "bindings: [none, local]\none_binding: [prefill]\n",
    ],
)
def test_the_effective_configuration_loads_back_equal(tmp_path: Path, text: str) -> None:
    found = load(tmp_path, text, sets=("host_memory.bytes=3000001",) if text == KIND else ())
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml(found, reveal=True), "utf-8")
    assert config.load(again, environ={}) == found


def test_the_shown_configuration_hides_secrets(tmp_path: Path) -> None:
    text = EXAMPLE.replace('EMPTY: ""', "HF_TOKEN: hf_abc, API_KEY: k9")
    shown = config.to_yaml(load(tmp_path, text))
    for secret in ("s3cret", "hf_abc", "k9"):
        assert secret not in shown
    assert "postgresql+psycopg://bench:***@db/topobench" in shown
    assert "NCCL_IB_HCA: mlx5" in shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HTTPS_PROXY", "http://me:hunter2@proxy:80", "http://me:***@proxy:80"),
        ("DB_URL", "postgresql://u:p@ss@h/d", "postgresql://u:***@h/d"),
        ("WANDB_KEY", "hunter2", "***"),
        ("MY_PWD", "hunter2", "***"),
        ("GPG_PASSPHRASE", "hunter2", "***"),
        ("NCCL_IB_PKEY", "0x7fff", "0x7fff"),
    ],
)
def test_the_shown_environment_hides_secrets(
    tmp_path: Path, name: str, value: str, shown: str
) -> None:
    env = f'env: {{{name}: "{value}"}}'
    text = f"kind: topobench/v1\n{env}\nhosts: [{{host: a, {env}}}]\n"
    found = yaml.safe_load(config.to_yaml(load(tmp_path, text)))
    assert found["env"] == {name: shown}
    assert found["hosts"][0]["env"] == {name: shown}


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("sqlite:///topobench.db", "sqlite:///topobench.db"),
        ("postgresql://u:p@ss@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p/w?@ss@h/d", "postgresql://u:***@h/d"),
        ("log a://u:p@s/s@h:1/d and b://v:q@k", "log a://u:***@h:1/d and b://v:***@k"),
        (
            "postgresql://u@h/d?password=x&sslmode=require",
            "postgresql://u@h/d?password=***&sslmode=require",
        ),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, masked: str) -> None:
    assert mask_urls(url) == masked


class TestStrictness:
    """Nothing changes its meaning between the file and the program."""

    def test_words_that_yaml_would_turn_into_something_else_stay_words(
        self, tmp_path: Path
    ) -> None:
        text = KIND + (
            "hosts: [{host: h1, labels: {site: no, on: yes, rack: 012, time: 7:30, x: 1e3}}]\n"
            "devices: [0000:01:00.0, 0000:81:00.0]\n"
        )
        found = load(tmp_path, text)
        labels = {"site": "no", "on": "yes", "rack": "012", "time": "7:30", "x": "1e3"}
        assert found.hosts[0].labels == labels
        assert found.devices == ("0000:01:00.0", "0000:81:00.0")

    def test_sizes_are_exact(self, tmp_path: Path) -> None:
        text = KIND + "probes: [{host_to_device: {bytes: [1e9, 8K, 1GB, 64 MiB]}}]\n"
        with pytest.raises(ConfigError, match="1000000000 is given twice"):
            load(tmp_path, text)
        found = load(tmp_path, text.replace("1GB, ", ""))
        assert found.probes[0].params["bytes"] == (10**9, 8192, 64 * 2**20)

    def test_a_duration_in_clock_notation_is_refused(self, tmp_path: Path) -> None:
        (mistake,) = mistakes(tmp_path, KIND + "budget: 7:30\n")
        assert mistake.startswith("cluster.yaml:2: budget: '7:30' can be read in two ways")

    @pytest.mark.parametrize(
        ("text", "mistake"),
        [
            ("name: a\nname: b\n", "cluster.yaml:3: name: given twice; first at"),
            ("env: {A: 1, A: 2}\n", "cluster.yaml:2: A: given twice; first at"),
            ("name: &n lab\n", "cluster.yaml:2: the anchor &n is not supported"),
            ("name: !!str lab\n", "cluster.yaml:2: the tag tag:yaml.org,2002:str is not"),
            ("name: lab\n---\nname: b\n", "cluster.yaml:3: a second document starts here"),
            ("env: {<<: {A: 1}}\n", "cluster.yaml:2: env.<<: expected one value"),
            ("? [a]\n: 1\n", "cluster.yaml:2: a key must be plain text"),
        ],
    )
    def test_what_yaml_allows_and_could_mislead_is_refused(
        self, tmp_path: Path, text: str, mistake: str
    ) -> None:
        (found,) = mistakes(tmp_path, KIND + text)
        assert found.startswith(mistake)

    def test_an_alias_is_refused_once(self, tmp_path: Path) -> None:
        found = mistakes(tmp_path, KIND + "name: &n lab\nenv: {A: *n}\n")
        assert [line.partition(": ")[2].partition(" is")[0] for line in found] == [
            "the anchor &n",
            "the alias *n",
        ]


class TestMistakes:
    """Every mistake is found in one pass and says where, what and what is accepted."""

    def test_all_are_reported_together(self, tmp_path: Path) -> None:
        text = KIND + (
            "nam: lab\n"
            "profile: quik\n"
            "probes: [host_memori, {all_reduce: {byte: 8K, ranks: -1}}]\n"
            "bindings: [locl]\n"
            "store: topobench.db\n"
            "budget: soon\n"
            "hosts: [{host: a, gpus: many}, a]\n"
        )
        assert mistakes(tmp_path, text, devices="0", seed="x", sets=("host_memory=1",)) == [
            "cluster.yaml:2: nam: unknown key; accepted are "
            + ", ".join(config.KEYS)
            + "; did you mean name?",
            "cluster.yaml:3: profile: 'quik' is not known; accepted are quick, standard, full; "
            "did you mean quick?",
            "cluster.yaml:4: probes[0]: no probe named 'host_memori'; accepted are "
            + ", ".join(registry.names())
            + "; did you mean host_memory?",
            "cluster.yaml:4: probes.all_reduce.byte: unknown key; accepted are bytes, dtype, "
            "ranks, backend, hosts, mode, pool, reduction, place; did you mean bytes?",
            "cluster.yaml:4: probes.all_reduce.ranks: '-1' is negative; expected a whole number",
            "cluster.yaml:5: bindings[0]: 'locl' is not known; accepted are none, local, remote, "
            "spread; did you mean local?",
            "cluster.yaml:6: store: 'topobench.db' is not a URL; accepted are sqlite:///FILE or "
            "postgresql+psycopg://USER@HOST/DATABASE",
            "cluster.yaml:7: budget: 'soon' is not a duration; expected a duration such as 90s, "
            "10m or 1h30m",
            "cluster.yaml:8: hosts[0].gpus: 'many' is not understood; expected a whole number",
            "cluster.yaml:8: hosts: a is given twice",
            "--seed: 'x' is not understood; expected a whole number",
            "--set host_memory=1: expected PROBE.FIELD=VALUE, such as host_memory.bytes=64M",
        ]

    @pytest.mark.parametrize(
        ("text", "mistake"),
        [
            ("name: a/b", "name: 'a/b' may hold letters"),
            (f"name: {'a' * 201}", "... is longer than 200 characters"),
            ("name: [a]", "name: expected one value, found a list"),
            ("name:", "name: has no value"),
            ("ray: local", "ray: expected keys ({key: value}), found 'local'"),
            ("ray: {adress: local}", "ray.adress: unknown key; accepted are address, ship"),
            ("ray: {ship: maybe}", "ray.ship: 'maybe' is neither true nor false"),
            ("ray: {address: auto}", "ray.address: 'auto' is not an address; accepted are local"),
            (
                "ray: {address: 'h:65536'}",
                "ray.address: 'h:65536' names no port; accepted are 1",
            ),
            ("store: mysql://h/d", "store: mysql:// is not supported; accepted are sqlite:///"),
            ("hosts: [{gpus: 8}]", "hosts[0]: names no host; add host:"),
            ("hosts: [{host: a, id: x}, {host: b, id: x}]", "hosts id: x is given twice"),
            ("env: {1A: x}", "env: '1A' cannot name an environment variable"),
            ('env: {A: "x\\0y"}', "env.A: is longer than 100,000 bytes, or holds a NUL"),
            (f"env: {{A: {'x' * 100_001}}}", "env.A: is longer than 100,000 bytes, or holds a NUL"),
            ("env: {A: }", "env.A: has no value"),
            ("budget: 0s", "budget: '0s' leaves no time"),
            ("budget: 90", "budget: '90' has no unit"),
            ("seed: -1", "seed: '-1' is negative"),
            ("devices: [0, 0]", "devices: 0 is given twice"),
            ("bindings: [none, none]", "bindings: none is given twice"),
            ("one_binding: [prefil]", "one_binding: no probe named 'prefil'; accepted are"),
            ("one_binding: [gemm, gemm]", "one_binding: gemm is given twice"),
            ("bindings: [{name: local, cpus: 0}]", "bindings[0].name: local is built in"),
            ("bindings: [{cpus: 0}]", "bindings[0]: has no name"),
            ("bindings: [{name: x, cpus: a-b}]", "bindings[0].cpus: 'a-b' is no CPU list"),
            ("bindings: [{name: x, cpus: 9-1}]", "bindings[0].cpus: '9-1' is no CPU list"),
            ("bindings: [{name: x, cpus: 0-9999999999}]", "bindings[0].cpus: '0-9999999999' is no"),
            ("bindings: [{name: x, cpus: 'node:'}]", "bindings[0].cpus: '' names no NUMA node"),
            ("bindings: [{name: x, memory: 0}]", "bindings[0].memory: '0' is no memory policy"),
            ("bindings: [{name: x, memory: 'bind:a'}]", "bindings[0].memory: 'a' names no NUMA"),
            ("rings: [fast]", "rings[0]: 'fast' is not known; accepted are auto, auto_ring"),
            ("rings: [[0, 2]]", "rings[0]: must hold each position from 0 exactly once"),
            (
                "rings: [[[0, 1], [1, 0]]]",
                "rings[0]: looks like an adjacency list; expected an order",
            ),
            (
                "rings: [{orders: [[0, 1], [0, 1, 2]]}]",
                "rings[0].orders: has no orders, or of unlike GPUs; expected some of one length",
            ),
            ("rings: [{force: yes}]", "rings[0].orders: has no orders"),
            ("rings: [[0, 1], {orders: [[0, 1]]}]", "rings: 0-1 is given twice"),
            ("rings: [{0: [1]}]", "rings[0]: looks like an adjacency list; expected an order"),
            ("probes: [{host_memory: {op: []}}]", "probes.host_memory.op: is an empty list"),
            ("probes: [{host_memory: {op: fill}}]", "probes.host_memory.op: 'fill' is not known"),
            (
                "probes: [{host_memory: {bytes: 8K}}]",
                "'8K' is out of range; expected at least 1 MiB",
            ),
            (
                "probes: [{host_to_device: {bytes: 1T}}]",
                "'1T' is out of range; expected at most 4 GiB",
            ),
            (
                "probes: [{host_to_device: {bytes: none}}]",
                "'none' is not understood; expected a size",
            ),
            ("probes: [host_memory, {host_memory: {}}]", "probes: host_memory is given twice"),
            ("probes: [{host_memory: copy}]", "probes.host_memory: expected keys"),
        ],
    )
    def test_a_mistake_names_its_line_key_and_what_is_accepted(
        self, tmp_path: Path, text: str, mistake: str
    ) -> None:
        (found,) = mistakes(tmp_path, KIND + text + "\n")
        assert found.startswith("cluster.yaml:2: ")
        assert mistake in found

    def test_a_shared_cluster_needs_a_name(self, tmp_path: Path) -> None:
        (found,) = mistakes(tmp_path, KIND + "ray: {address: 10.0.0.1:6379}\n")
        assert found.startswith("cluster.yaml: name: missing; a cluster at 10.0.0.1:6379")


class TestKind:
    """Two programs call their file cluster.yaml; only ours is read."""

    def test_a_ray_launcher_file_is_refused_in_one_line(self, tmp_path: Path) -> None:
        text = (
            "cluster_name: default\nprovider: {type: aws, region: us-west-2}\n"
            "available_node_types: {head: {node_config: {}}}\nmax_workers: 2\n"
        )
        assert mistakes(tmp_path, text) == [
            "cluster.yaml:1: kind: this is a Ray launcher file (it has available_node_types, "
            "cluster_name, provider); a topobench cluster file starts with kind: topobench/v1, "
            "see docs/config.md"
        ]

    @pytest.mark.parametrize(
        ("text", "mistake"),
        [
            ("name: lab\n", "cluster.yaml:1: kind: missing; a topobench cluster file starts"),
            ("kind: topobench/v2\n", "cluster.yaml:1: kind: topobench/v2 is not read by this"),
            ("kind: RayCluster\n", "cluster.yaml:1: kind: RayCluster is not read by this version"),
            (
                "kind: topobench-fleet/v1\n",
                "cluster.yaml:1: kind: topobench-fleet/v1 is a fleet file, for sweep --fleet",
            ),
            ("kind: [a]\n", "cluster.yaml:1: kind: no text is not read by this version"),
        ],
    )
    def test_another_kind_is_refused_in_one_line(
        self, tmp_path: Path, text: str, mistake: str
    ) -> None:
        (found,) = mistakes(tmp_path, text)
        assert found.startswith(mistake)


class TestUnreadableFiles:
    """A file that cannot be read is a ConfigError naming it, whatever it is."""

    @pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n"])
    def test_an_empty_file_says_how_to_start(self, tmp_path: Path, text: str) -> None:
        assert mistakes(tmp_path, text) == [
            "cluster.yaml: is empty; it must start with kind: topobench/v1"
        ]

    @pytest.mark.parametrize(
        ("raw", "mistake"),
        [
            (b"\x89PNG\r\n\x1a\n\xff\x00", "not a text file (byte 0 is not UTF-8)"),
            (b"\x00\x01\x02", "not a text file"),
            (b"kind: [\n", "not YAML"),
            (b"\tkind: x\n", "not YAML"),
            (b"- 1\n", "expected keys at the top"),
            (b"word\n", "expected keys at the top"),
            (b"a: " + b"[" * 5000, "nest"),
            (b"a: " + b"[" * 20 + b"]" * 20, "nested deeper than 12 levels"),
        ],
    )
    def test_other_content_is_refused(self, tmp_path: Path, raw: bytes, mistake: str) -> None:
        path = tmp_path / "x.yaml"
        path.write_bytes(raw)
        with pytest.raises(ConfigError) as caught:
            config.load(path, environ={})
        assert str(caught.value).startswith(str(path))
        assert mistake in str(caught.value)

    def test_a_byte_order_mark_is_no_mistake(self, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        path.write_bytes(b"\xef\xbb\xbf" + KIND.encode() + b"name: lab\r\n")
        assert config.load(path, environ={}).name == "lab"

    def test_a_missing_file_and_a_directory_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
            config.load(tmp_path / "absent.yaml", environ={})
        with pytest.raises(ConfigError, match="it is a directory, not a file; name a YAML file"):
            config.load(tmp_path, environ={})

    def test_what_the_system_refuses_to_read_is_named(self) -> None:
        path = Path("/proc/self/mem")
        if not path.exists():
            pytest.skip("this system has no /proc/self/mem to fail on")
        with pytest.raises(
            ConfigError, match=r"^/proc/self/mem: cannot be read: Input/output error"
        ):
            config.load(path, environ={})


class TestPrecedence:
    """A flag wins over the environment, the file, the profile and the defaults."""

    def test_the_store(self, tmp_path: Path) -> None:
        path = written(tmp_path, KIND + "store: sqlite:///file.db\n")
        environ = {"TOPOBENCH_STORE": "sqlite:///env.db"}
        flags = Overrides(store="sqlite:///flag.db")
        assert config.load(path, environ={}).store == "sqlite:///file.db"
        assert config.load(path, environ=environ).store == "sqlite:///env.db"
        assert config.load(path, environ=environ, overrides=flags).store == "sqlite:///flag.db"

    def test_a_wrong_variable_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"^TOPOBENCH_STORE: store: 'x' is not a URL"):
            config.load(None, environ={"TOPOBENCH_STORE": "x"})

    def test_an_empty_variable_says_nothing(self) -> None:
        found = config.load(None, environ={"TOPOBENCH_STORE": ""})
        assert found.store == "sqlite:///topobench.db"

    def test_parameters_are_merged_one_by_one(self, tmp_path: Path) -> None:
        text = KIND + "probes: [{host_to_device: {bytes: [2M, 4M], memory: pageable}}]\n"
        found = load(tmp_path, text, sets=("host_to_device.bytes=1M,8M",))
        assert found.probes == (
            ProbeChoice(
                "host_to_device",
                {
                    "bytes": (2**20, 8 * 2**20),
                    "direction": ("h2d", "d2h"),
                    "memory": ("pageable",),
                    "at_once": ("all",),
                },
            ),
        )

    def test_chosen_probes_keep_what_file_and_profile_say_of_them(self, tmp_path: Path) -> None:
        text = KIND + "probes: [{host_memory: {op: triad}}]\n"
        found = load(tmp_path, text, probes="all_reduce, host_memory")
        assert [p.name for p in found.probes] == ["all_reduce", "host_memory"]
        assert found.probes[1].params == {"op": ("triad",)}
        assert found.probes[0].params["ranks"] == (2, 4)

    def test_a_flag_may_name_the_arms_of_the_file(self, tmp_path: Path) -> None:
        text = KIND + "bindings: [none, {name: mine, cpus: 0}]\n"
        found = load(tmp_path, text, bindings="mine,remote")
        assert found.bindings == (BindingChoice("mine", "0"), BindingChoice("remote"))
        (mistake,) = mistakes(tmp_path, text, bindings="mien")
        assert mistake == (
            "--bindings: 'mien' is no binding; accepted are none, local, remote, spread, mine; "
            "did you mean mine?"
        )

    def test_the_other_flags(self, tmp_path: Path) -> None:
        found = load(
            tmp_path,
            EXAMPLE,
            profile="quick",
            devices="0,GPU-1",
            hosts="10.9.0.11",
            budget="5m",
            seed=0,
        )
        assert (found.name, found.profile, found.processes) == ("lab", "quick", 1)
        assert (found.devices, found.only_hosts) == (("0", "GPU-1"), ("10.9.0.11",))
        assert (found.budget_seconds, found.seed) == (300.0, 0)

    @pytest.mark.parametrize(
        ("flags", "mistake"),
        [
            ({"profile": "fast"}, "--profile: 'fast' is not known; accepted are quick, standard"),
            ({"probes": "gem"}, "--probes: no probe named 'gem'; accepted are host_memory"),
            ({"budget": "5"}, "--budget: '5' has no unit"),
            ({"sets": ("host_memory.byts=1M",)}, "--set host_memory.byts=1M: unknown key"),
            ({"sets": ("host_memory.bytes=",)}, "--set host_memory.bytes=: is an empty list"),
            (
                {"sets": ("host_memory.bytes=1M,,2M",)},
                "--set host_memory.bytes=1M,,2M: '1M,,2M' has",
            ),
            ({"devices": ""}, "--devices: is empty"),
            ({"devices": "0,"}, "--devices: '0,' has an empty item"),
            ({"hosts": " "}, "--hosts: is empty"),
            ({"sets": ("nope.bytes=1M",)}, "--set nope.bytes=1M: no probe named 'nope'"),
            (
                {"sets": ("all_reduce.bytes=1M",), "probes": "host_memory"},
                "--set: all_reduce is not among the probes to run: host_memory",
            ),
        ],
    )
    def test_a_mistake_in_a_flag_names_the_flag(
        self, flags: dict[str, object], mistake: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            config.load(None, environ={}, overrides=Overrides(**flags))  # type: ignore[arg-type]
        (found,) = caught.value.mistakes
        assert found.startswith(mistake)

    def test_selecting_no_probe_is_kept_for_the_planner_to_refuse(self) -> None:
        assert config.load(None, environ={}, overrides=Overrides(probes="")).probes == ()


class TestHosts:
    """What the user said of a host is found by any of its names."""

    @pytest.mark.parametrize("name", ["KEY1", "node-1", "10.0.0.4"])
    def test_an_expectation_is_found(self, tmp_path: Path, name: str) -> None:
        found = load(
            tmp_path, KIND + f"env: {{A: 1, B: 2}}\nhosts: [{{host: {name}, env: {{B: 3}}}}]"
        )
        here = dataclasses.replace(host(small(), "key1"), name="node-1", address="10.0.0.4")
        assert found.expectation_for(here) == found.hosts[0]
        assert found.env_for(here) == {"A": "1", "B": "3"}
        other = dataclasses.replace(host(small(), "else"), address="10.0.0.5")
        assert found.expectation_for(other) is None
        assert found.env_for(other) == {"A": "1", "B": "2"}

    def test_the_id_wins_over_names(self, tmp_path: Path) -> None:
        found = load(tmp_path, KIND + "hosts: [{host: old-name, id: key1}]\n")
        assert found.expectation_for(host(small(), "key1")) == found.hosts[0]


class TestDocumentation:
    """docs/config.md names every key and flag, and its examples load."""

    text = (ROOT / "docs/config.md").read_text("utf-8")

    @pytest.mark.parametrize("key", config.KEYS)
    def test_every_key_has_a_row(self, key: str) -> None:
        assert f"\n| `{key}` |" in self.text

    @pytest.mark.parametrize(
        ("prefix", "kind"),
        [("ray", RayConfig), ("hosts", HostExpectation)],
    )
    def test_every_key_of_a_table_has_a_row(self, prefix: str, kind: type) -> None:
        for field in dataclasses.fields(kind):
            assert f"\n| `{prefix}.{field.name}` |" in self.text

    @pytest.mark.parametrize("field", dataclasses.fields(Overrides), ids=lambda f: str(f.name))
    def test_every_flag_has_a_row(self, field: dataclasses.Field[object]) -> None:
        flag = "--set" if field.name == "sets" else f"--{field.name}"
        assert f"\n| `{flag} " in self.text

    @pytest.mark.parametrize("word", [*BUILT_IN_BINDINGS, *RING_NAMES])
    def test_every_arm_is_named(self, word: str) -> None:
        assert f"`{word}`" in self.text

    @pytest.mark.parametrize("probe", registry.names())
    def test_every_probe_has_a_row_with_its_parameters(self, probe: str) -> None:
        (row,) = [line for line in self.text.splitlines() if line.startswith(f"| `{probe}` |")]
        for name in fields_of(registry.load(probe)):
            assert f"`{name}`" in row

    def test_its_examples_load(self, tmp_path: Path) -> None:
        examples = re.findall(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        assert len(examples) == 5
        for example in examples:
            assert load(tmp_path, example).probes

    def test_its_mistakes_are_what_is_printed(self, tmp_path: Path) -> None:
        printed = re.findall(r"```\n(cluster\.yaml.*?)```", self.text, re.DOTALL)[0].splitlines()
        text = KIND + "\n\n\nprofile: standart\n\n\n\nbudget: 90\n"
        assert mistakes(tmp_path, text, sets=("host_memory.byts=1M",)) == printed


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_gives_only_our_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    """Whatever a file holds, the answer is a configuration or a ConfigError naming the file."""
    path = tmp_path_factory.mktemp("garbage") / "cluster.yaml"
    path.write_bytes(KIND.encode() + raw)
    assert all(line.startswith(str(path)) for line in _mistakes_of(path))


def _mistakes_of(path: Path) -> tuple[str, ...]:
    try:
        config.load(path, environ={})
    except ConfigError as error:
        return error.mistakes
    return ()


@pytest.mark.parametrize("module", ["config", "plan"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, topobench.{module}, topobench.config as c; c.load(None, environ={{}});"
        "heavy = {'torch', 'ray', 'sqlalchemy', 'pynvml', 'scipy', 'pydantic', 'numba'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"
