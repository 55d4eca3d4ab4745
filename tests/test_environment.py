"""What workers get of the environment, what is named instead, what is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launching import Lab, cell
from topobench.agents import environment
from topobench.agents.environment import Environment
from topobench.reading import Arm, Binding, Cell, Status

PLAIN = {"PATH": "/usr/bin", "HOME": "/home/me"}


def build(
    host: Mapping[str, str], *, of: Cell | None = None, site: Mapping[str, str] | None = None,
    **more: Any,
) -> Environment:  # fmt: skip
    return environment.build(
        of or cell("steady"),
        host,
        sweep="s1",
        site=site or {},
        package_root=Path("/opt/topobench"),
        **more,
    )


def with_env(**env: str) -> Cell:
    return dataclasses.replace(cell("steady"), arm=Arm(Binding("none", threads=4), env=env))


class TestPassed:
    def test_only_the_allow_list_comes_from_the_host(self) -> None:
        host = {
            **PLAIN,
            "LC_ALL": "C",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "SLURM_JOB_ID": "7",
            "LD_LIBRARY_PATH": "/lib",
            "AWS_SECRET_ACCESS_KEY": "abcdefghij",
            "MY_SETTING": "1",
            "TOPOBENCH_STORE": "postgresql://u:p@h/db",
        }
        variables = build(host).variables
        assert {k: variables[k] for k in host if k in variables} == {
            k: v for k, v in host.items() if k not in ("AWS_SECRET_ACCESS_KEY", "MY_SETTING",
                                                       "TOPOBENCH_STORE")
        }  # fmt: skip

    def test_the_fixed_ones(self) -> None:
        gpus = dataclasses.replace(with_env(), devices=("GPU-b", "GPU-a"))
        variables = build({**PLAIN, "CUDA_VISIBLE_DEVICES": "7"}, of=gpus).variables
        assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
        assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert variables["OMP_NUM_THREADS"] == "4"
        assert variables["NCCL_RAS_ENABLE"] == "0"
        assert variables["TOPOBENCH_SWEEP"] == "s1"
        assert build(PLAIN).variables["CUDA_VISIBLE_DEVICES"] == ""

    def test_site_then_arm_then_fixed(self) -> None:
        found = build(
            {**PLAIN, "LD_LIBRARY_PATH": "host"},
            of=with_env(NCCL_ALGO="Ring"),
            site={"NCCL_ALGO": "Tree", "LD_LIBRARY_PATH": "site", "OMP_NUM_THREADS": "99"},
        )
        assert found.variables["NCCL_ALGO"] == "Ring"
        assert found.variables["LD_LIBRARY_PATH"] == "site"
        assert found.variables["OMP_NUM_THREADS"] == "4"
        assert found.warnings == (
            "env_ignored: OMP_NUM_THREADS=99 of the config; workers always get OMP_NUM_THREADS=4",
        )

    def test_what_proves_a_ring_is_never_left_to_config_or_arm(self) -> None:
        """Of gangs over NCCL alone; those that are given a ring have a graph file of ours."""
        site = {"NCCL_DEBUG_FILE": "/mine", "NCCL_GRAPH_FILE": "/graph.xml"}
        for ring, ours in ((None, []), ("auto", ["NCCL_DEBUG_FILE"]), ("best", [*site])):
            gang = dataclasses.replace(cell("steady", ranks=2), arm=Arm(Binding("none"), ring))
            found = build(PLAIN, of=gang, site=site)
            assert found.variables.keys() & site == site.keys() - ours
            told = [w.split("=")[0] for w in found.warnings]
            assert told == [f"env_ignored: {key}" for key in ours]
        tracing = Arm(Binding("none"), "auto", {"NCCL_DEBUG": "TRACE"})
        gang = dataclasses.replace(cell("steady", ranks=2), arm=tracing)
        reason = environment.conflict(gang, PLAIN, build(PLAIN, of=gang))
        assert reason is not None
        assert reason.text.startswith("topobench sets that itself")
        assert reason.text.endswith("the arm asks for NCCL_DEBUG=TRACE")

    def test_our_package_comes_first_on_the_path(self) -> None:
        assert build({**PLAIN, "PYTHONPATH": "/a:/b"}).variables["PYTHONPATH"] == (
            "/opt/topobench:/a:/b"
        )
        assert build(PLAIN).variables["PYTHONPATH"] == "/opt/topobench"

    def test_the_driver_mark_and_the_interface(self) -> None:
        found = build({**PLAIN, "TOPOBENCH_DRIVER": "1-2-3"}, interface="eth1")
        assert found.variables["TOPOBENCH_DRIVER"] == "1-2-3"
        assert found.variables["GLOO_SOCKET_IFNAME"] == "eth1"
        assert "GLOO_SOCKET_IFNAME" not in build(PLAIN).variables


class TestNotPassed:
    def test_settings_that_change_speed_are_named_with_the_line_that_passes_them(self) -> None:
        host = {
            **PLAIN,
            "NCCL_IB_HCA": "mlx5",
            "LD_PRELOAD": "/lib/x.so",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "0",
            "KMP_AFFINITY": "",
        }
        (warning,) = build(host).warnings
        assert warning == (
            "env_not_passed: set on the host but not passed to workers: LD_PRELOAD, NCCL_IB_HCA; "
            "to pass them write  env: {LD_PRELOAD: '/lib/x.so', NCCL_IB_HCA: 'mlx5'}"
        )

    def test_no_warning_if_the_config_passes_them(self) -> None:
        assert build({**PLAIN, "NCCL_IB_HCA": "a"}, site={"NCCL_IB_HCA": "b"}).warnings == ()

    def test_labels_of_an_image_are_no_settings(self) -> None:
        labels = {"CUDA_VERSION": "13", "NCCL_VERSION": "2.28", "TORCH_CUDA_ARCH_LIST": "9.0a"}
        assert build({**PLAIN, **labels}).warnings == ()

    def test_files_of_nccl_are_named_with_what_they_set(self, tmp_path: Path) -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/nccl.conf").write_text("# site\nNCCL_IB_HCA=mlx5_0\nNCCL_DEBUG = INFO\n")
        (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring")
        (tmp_path / "mine.conf").write_text("")
        host = {"HOME": str(tmp_path), "NCCL_CONF_FILE": str(tmp_path / "mine.conf")}
        assert environment.nccl_files(host, tmp_path) == [
            f"nccl_conf: {tmp_path}/etc/nccl.conf sets NCCL_DEBUG, NCCL_IB_HCA",
            f"nccl_conf: {tmp_path}/.nccl.conf sets NCCL_ALGO",
            f"nccl_conf: {tmp_path}/mine.conf sets nothing",
        ]
        assert environment.nccl_files({}, tmp_path / "empty") == []


class TestSafetySwitches:
    """An administrator who forbids multicast is obeyed whatever config and arm say."""

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("NCCL_NVLS_ENABLE", "0"),
            ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
            ("NVSHMEM_DISABLE_NVLS", "1"),
        ],
    )
    def test_they_pass_and_are_stored(self, key: str, value: str) -> None:
        found = build({**PLAIN, key: value}, site={key: "other"})
        assert found.variables[key] == found.stored[key] == value
        assert found.warnings[0].startswith(f"env_ignored: {key}=other of the config")

    def test_switches_that_forbid_nothing_are_ordinary_settings(self) -> None:
        host = {**PLAIN, "NCCL_NVLS_ENABLE": "1"}
        assert "NCCL_NVLS_ENABLE" not in build(host).variables
        asking = with_env(NCCL_NVLS_ENABLE="0")
        assert environment.conflict(asking, host, build(host, of=asking)) is None

    def test_an_arm_that_asks_for_what_is_forbidden_does_not_apply_and_is_not_mislabelled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
        lab = Lab(tmp_path)
        (run,) = lab.run(with_env(NCCL_NVLS_ENABLE="1"))
        assert run.status is Status.NOT_APPLICABLE
        assert str(run.reason) == (
            "unsupported: NCCL_NVLS_ENABLE=0 is set where this host is measured, which stays; "
            "the arm asks for NCCL_NVLS_ENABLE=1"
        )
        (same,) = lab.run(with_env(NCCL_NVLS_ENABLE="0"))
        assert same.status is Status.OK
        assert same.environment["env"]["NCCL_NVLS_ENABLE"] == "0"


class TestSecrets:
    def test_stored_values_are_masked_and_private_ones_left_out(self) -> None:
        found = build(
            {**PLAIN, "USER": "me", "LC_ALL": "C"},
            site={
                "HF_TOKEN": "hf_abcdefgh",
                "PROXY": "http://me:secret@proxy:1",
                "MY_PWD": "hunter2",
                "NCCL_IB_PKEY": "0x7fff",
                "NCCL_DEBUG": "INFO",
            },
        )
        assert found.stored["HF_TOKEN"] == "***"
        assert found.stored["PROXY"] == "http://me:***@proxy:1"
        assert found.stored["MY_PWD"] == "***"
        assert found.stored["NCCL_IB_PKEY"] == "0x7fff"
        assert found.stored["NCCL_DEBUG"] == "INFO"
        assert not {"USER", "HOME", "LC_ALL", "TOPOBENCH_SWEEP"} & found.stored.keys()
        assert found.variables["HF_TOKEN"] == "hf_abcdefgh"

    def test_text_loses_known_secrets_and_what_looks_like_one(self) -> None:
        found = build({**PLAIN, "RAY_AUTH_TOKEN": "0123456789abcdef"})
        text = (
            "token is 0123456789abcdef\n"
            "api_key=xyz password: 'a b' GITHUB_TOKEN=ghp_1\n"
            "postgresql+psycopg://me:pw@host/db\n"
            "tokens_per_second: 12.5, tokens=512"
        )
        assert found.mask(text) == (
            "token is ***\n"
            "api_key=*** password: *** GITHUB_TOKEN=***\n"
            "postgresql+psycopg://me:***@host/db\n"
            "tokens_per_second: 12.5, tokens=512"
        )
        assert "0123456789abcdef" not in repr(found)

    def test_a_worker_gets_exactly_this(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefghijkl")
        monkeypatch.setenv("NCCL_ALGO", "Tree")
        lab = Lab(tmp_path)
        (run,) = lab.run(cell("steady"), env={"NCCL_DEBUG": "WARN", "MY_PASSWORD": "opensesame"})
        got = run.conditions["environment"]
        assert "AWS_SECRET_ACCESS_KEY" not in got
        assert "NCCL_ALGO" not in got
        assert (got["NCCL_DEBUG"], got["MY_PASSWORD"]) == ("WARN", "opensesame")
        assert got["TOPOBENCH_SWEEP"] == lab.sweep
        assert run.environment["env"]["MY_PASSWORD"] == "***"
        assert any("NCCL_ALGO" in w for w in run.warnings)
