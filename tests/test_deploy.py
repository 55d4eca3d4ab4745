"""deploy/: every file is tried as far as that goes without the platform it is for."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from topobench import cli, fleet, fleet_times
from topobench.db.store import Store
from topobench.web import metrics
from topobench.web.site import Site

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
GRAFANA = json.loads((DEPLOY / "grafana/topobench.json").read_text())


def run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ignoring" not in done.stderr, done.stderr


def the(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def commands() -> list[list[str]]:
    """Every topobench command line of the units, the crontab and the manifests."""
    lines = [p.read_text() for p in (*DEPLOY.glob("systemd/*.service"), DEPLOY / "cron/topobench")]
    found = [
        shlex.split(line.split(">")[0])
        for text in lines
        for line in re.findall(r"topobench ((?:sweep|daemon|db) .*)", text)
        if not line.startswith("daemon:")
    ]
    job = the("kubernetes/cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    once = shlex.split(the("kubernetes/rayjob.yaml")["spec"]["entrypoint"])
    assert once[0] == "topobench"
    return [*found, job["containers"][0]["args"], once[1:]]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_line_is_understood(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its files are missing here, which is the only thing it complains about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path / "run"))  # where cron keeps what it told
    moved = [w.replace("/etc/", f"{tmp_path}/").replace("/var/", f"{tmp_path}/") for w in command]
    assert cli.main(moved) in (1, 2, 3)
    told = capsys.readouterr().err
    assert re.search(r"no such file|no database|does not exist", told), told


def test_the_example_of_a_fleet_is_read(tmp_path: Path) -> None:
    found = fleet.load(DEPLOY / "fleet.yaml")
    assert [s.label for s in found.schedules] == ["lab/nightly", "lab/weekly"]
    page = (ROOT / "docs/operations.md").read_text()
    (tmp_path / "fleet.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    shutil.copy(DEPLOY / "lab.yaml", tmp_path)
    told = [s.label for s in fleet.load(tmp_path / "fleet.yaml").schedules]
    assert told == ["lab/nightly", "lab/weekly", "edge/nightly"]


def test_the_page_names_every_key_of_a_fleet() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| (?:top|cluster|schedule|any)", page, re.MULTILINE)
    told = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert told == {*fleet._KEYS, *fleet._CLUSTER, *fleet._SCHEDULE}


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text().replace("/opt/topobench/bin/topobench", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    run("systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir())))


def test_the_crontab_has_five_fields_and_a_user() -> None:
    lines = [x for x in (DEPLOY / "cron/topobench").read_text().splitlines() if "* *" in x]
    assert len(lines) == 2
    for line in lines:
        *times, user = line.split()[:6]
        assert fleet_times.parse_cron(" ".join(times))
        assert user == "topobench"


def test_shellcheck_finds_nothing_in_the_slurm_script() -> None:
    run("shellcheck", "deploy/slurm/sweep.sbatch")


SLURM = {
    "scontrol": 'echo "$(hostname -s)"',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "ray": """if [ $1 = start ]; then echo "$@" >ray.args; exec sleep 600; fi
until [ -s ray.args ]; do sleep 0.05; done; echo ' 1 node_a'""",
    "topobench": """if [ $1 = check ]; then exit $CHECK; fi
cp "$3" cluster.yaml; [ $PROBE != waits ] || {
    sleep 600 & trap "kill $!; exit 143" TERM
    sleep 0.3; echo $$ >sweep.pid; wait
}; exit $PROBE""",
}
"""What stands in for Slurm, which is not here, and for the programs that its job starts."""


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[[str, str], subprocess.Popen[bytes]]:
    """The batch script on one node, with what ``probe`` and ``check`` end with."""
    for name, text in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TOPOBENCH_BIN": str(tmp_path)}
    env |= {"SLURM_JOB_NODELIST": "n", "SLURM_JOB_NUM_NODES": "1", "TOPOBENCH_STORE": "x"}
    script = ("bash", str(DEPLOY / "slurm/sweep.sbatch"))
    return lambda probe, check: subprocess.Popen(
        script, cwd=tmp_path, env={**env, "PROBE": probe, "CHECK": check, "TMPDIR": str(tmp_path)}
    )


@pytest.mark.parametrize(
    ("probe", "check", "code"), [("0", "0", 0), ("1", "0", 1), ("0", "2", 0), ("0", "3", 3)]
)
def test_the_slurm_job_ends_as_its_sweep_did_and_takes_ray_away(
    slurm: Callable[[str, str], subprocess.Popen[bytes]],
    tmp_path: Path,
    probe: str,
    check: str,
    code: int,
) -> None:
    assert slurm(probe, check).wait(timeout=60) == code
    assert "start --head --port=6379" in (tmp_path / "ray.args").read_text()
    cluster = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    assert cluster["ray"] == {"address": f"{_short_name()}:6379", "require_token": True}
    assert list(tmp_path.glob("topobench.*")) == [], "its folder is gone"


def test_the_slurm_job_tells_its_sweep_of_the_signal_that_comes_before_the_end(
    slurm: Callable[[str, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    job = slurm("waits", "0")
    until = time.monotonic() + 60
    while not (tmp_path / "sweep.pid").exists() and time.monotonic() < until:
        time.sleep(0.05)
    job.terminate()
    assert job.wait(timeout=60) == 143
    assert not Path(f"/proc/{(tmp_path / 'sweep.pid').read_text().strip()}").exists()


def _short_name() -> str:
    return subprocess.check_output(["hostname", "-s"], text=True).strip()


def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    run("promtool", "check", "rules", "deploy/prometheus/alerts.yaml")
    run("promtool", "test", "rules", "deploy/prometheus/alerts.test.yaml")


def test_promtool_understands_the_expressions_of_the_panels(tmp_path: Path) -> None:
    """A host of DCGM's exporter, named in full or not, meets the same host of ours."""
    asked = [t["expr"] for p in GRAFANA["panels"] for t in p["targets"] if "expr" in t]
    asked = [x.replace("$cluster", ".*").replace("$host", ".*") for x in asked]
    rules = [{"record": f"panel:{n}", "expr": x} for n, x in enumerate(asked)]
    (tmp_path / "panels.yaml").write_text(
        json.dumps({"groups": [{"name": "panels", "rules": rules}]})
    )
    verdict, heat = (x for x in asked if "label_replace" in x)
    ours = 'topobench_host_verdict_level{cluster="lab", host="h07.lab.example", synthetic="0"}'
    theirs = 'DCGM_FI_DEV_GPU_TEMP{Hostname="h07", gpu="0", UUID="GPU-1"}'
    joined = {"expr": f"({heat}) and on (host) ({verdict}) == 5", "eval_time": "0m"}
    test = {
        "interval": "1m",
        "input_series": [{"series": ours, "values": "5"}, {"series": theirs, "values": "84"}],
        "promql_expr_test": [
            {**joined, "exp_samples": [{"labels": '{host="h07"}', "value": 84}]},
        ],
    }
    (tmp_path / "test.yaml").write_text(
        json.dumps({"rule_files": ["panels.yaml"], "tests": [test]})
    )
    run("promtool", "check", "rules", str(tmp_path / "panels.yaml"))
    run("promtool", "test", "rules", str(tmp_path / "test.yaml"))


def test_the_dashboard_has_a_p95_and_a_grid_of_hosts_and_nights() -> None:
    titles = {p["title"]: p["type"] for p in GRAFANA["panels"]}
    assert [t for title, t in titles.items() if title.startswith("P95")] == ["table"]
    grids = [t for title, t in titles.items() if "night" in title]
    assert sorted(grids) == ["heatmap", "status-history"]
    assert len({p["id"] for p in GRAFANA["panels"]}) == len(GRAFANA["panels"])


def test_alerts_and_panels_ask_for_metrics_that_exist(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus/alerts.yaml").read_text() + json.dumps(GRAFANA)
    asked = set(re.findall(r"\b(topobench_\w+?)(?:\{|\b)(?=[^\w])", text)) - {"topobench_write"}
    url = f"sqlite:///{tmp_path}/x.db"
    Store.open(url).close()
    site = Site(url)
    target = tmp_path / "x.prom"
    metrics.write_textfile([site], target, metrics.of_look([], {}))
    site.close()
    known = set(re.findall(r"^# TYPE (\w+)", target.read_text(), re.MULTILINE))
    assert asked
    assert asked <= known


@pytest.mark.postgres
def test_postgresql_understands_the_panels(postgres_url: str) -> None:
    asked = [t["rawSql"] for p in GRAFANA["panels"] for t in p["targets"] if "rawSql" in t]
    assert len(asked) == 2, "P95 and the heat map"
    with Store.open(postgres_url) as store, store.engine.connect() as connection:
        for text in asked:
            plain = re.sub(r"\$__timeFilter\(\w+\)", "true", text.replace("$cluster", "'lab'"))
            assert connection.execute(sa.text(plain)).all() == []


CRD = {
    "spec": {"rayVersion", "headGroupSpec", "workerGroupSpecs"},
    "head": {"rayStartParams", "template"},
    "workers": {
        *("groupName", "replicas", "minReplicas", "maxReplicas"),
        *("rayStartParams", "template"),
    },
    "job": {
        *("entrypoint", "submissionMode", "backoffLimit", "activeDeadlineSeconds"),
        *("shutdownAfterJobFinishes", "ttlSecondsAfterFinished"),
        *("submitterPodTemplate", "rayClusterSpec"),
    },
}
"""Fields of ray.io/v1 that the manifests use; any other one would be a slip."""


def test_ray_clusters_and_jobs_have_no_field_that_their_kinds_lack() -> None:
    cluster, job = (the(f"kubernetes/{name}.yaml")["spec"] for name in ("raycluster", "rayjob"))
    assert job.keys() <= CRD["job"]
    for spec in (cluster, job["rayClusterSpec"]):
        assert spec.keys() <= CRD["spec"]
        assert spec["headGroupSpec"].keys() <= CRD["head"]
        assert all(group.keys() <= CRD["workers"] for group in spec["workerGroupSpecs"])


def test_a_ray_job_has_the_hosts_of_the_ray_cluster_and_leaves_nothing_behind() -> None:
    cluster, job = the("kubernetes/raycluster.yaml"), the("kubernetes/rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    own = spec["rayClusterSpec"]
    assert own["workerGroupSpecs"] == cluster["spec"]["workerGroupSpecs"]
    assert own["rayVersion"] == cluster["spec"]["rayVersion"]
    assert spec["submissionMode"] == "K8sJobMode"
    assert (spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"]) == (True, 0)
    assert spec["backoffLimit"] == 0, "a sweep that failed is not begun anew"
    head = own["headGroupSpec"]
    assert "include-dashboard" not in head["rayStartParams"], "jobs come through it"
    pods = spec["submitterPodTemplate"]["spec"], head["template"]["spec"]
    for pod in pods:
        (container,) = pod["containers"]
        env = {e["name"]: e for e in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        key = {"name": "topobench-ray", "key": "auth_token"}
        assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == key
    mounted = {m["name"]: m["mountPath"] for m in pods[1]["containers"][0]["volumeMounts"]}
    (folder,) = (mounted[v["name"]] for v in pods[1]["volumes"])
    words = shlex.split(spec["entrypoint"])
    assert Path(words[words.index("--cluster") + 1]).parent == Path(folder)


def test_manifests_have_the_fields_that_their_kinds_need() -> None:
    ray, job = the("kubernetes/raycluster.yaml"), the("kubernetes/cronjob.yaml")
    assert (ray["apiVersion"], ray["kind"]) == ("ray.io/v1", "RayCluster")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    head, (workers,) = ray["spec"]["headGroupSpec"], ray["spec"]["workerGroupSpecs"]
    assert all(isinstance(v, str) for g in (head, workers) for v in g["rayStartParams"].values())
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    mounts = workers["template"]["spec"]
    assert mounts["volumes"][0]["hostPath"]["path"] == "/run/lock/topobench"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert mounts["initContainers"][0]["command"] == ["chmod", "1777", "/run/lock/topobench"]
    sweeper = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for pod in (head["template"]["spec"], mounts, sweeper):
        (container,) = pod["containers"]
        env = {e["name"]: e for e in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        key = {"name": "topobench-ray", "key": "auth_token"}
        assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == key
    ports = (6379, int(workers["rayStartParams"]["node-manager-port"]))
    for group, port in zip((head, workers), ports, strict=True):
        (container,) = group["template"]["spec"]["containers"]
        probed = [container[k]["tcpSocket"]["port"] for k in ("readinessProbe", "livenessProbe")]
        assert probed == [port, port]
    assert fleet_times.parse_cron(job["spec"]["schedule"])
    launcher = the("ray/onpremise.yaml")
    assert launcher["provider"]["type"] == "local"
    assert launcher["max_workers"] == len(launcher["provider"]["worker_ips"])


def test_ray_itself_takes_the_file_for_hosts_of_ones_own() -> None:
    code = (
        "import sys, yaml\n"
        "from ray.autoscaler._private import util\n"
        "config = util.prepare_config(yaml.safe_load(open(sys.argv[1])))\n"
        "util.validate_config(config)\n"
        "(kind,) = config['available_node_types'].values()\n"
        "assert (kind['min_workers'], kind['max_workers']) == (2, 2)\n"
    )
    run(sys.executable, "-c", code, str(DEPLOY / "ray/onpremise.yaml"))


def test_the_image_copies_what_is_there() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    copied = [
        x for line in re.findall(r"^COPY (.*)", text, re.MULTILINE) for x in line.split()[:-1]
    ]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
