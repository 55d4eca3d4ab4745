"""
The environment of a worker: what is passed, what is not, what is stored.

A worker gets a short allow-list of the agent's environment, the site's ``env:`` block,
the arm's settings and a few fixed variables, in this order. Settings of a host that
change speed but are not passed are named, so that nobody is surprised by a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from topobench import env_arms, processes, user_files
from topobench.agents import nccl_run
from topobench.masking import MASK, mask_urls
from topobench.reading import Cell, Reason, ReasonCode

_LONGEST_NCCL_FILE = 1 << 20
_PRIVATE = frozenset({"HOME", "USER", "LANG", "TMPDIR", "TZ"})
"""Passed, but explains no number."""
_PRIVATE_PREFIXES = ("LC_", "TOPOBENCH_")
_PASSED = _PRIVATE | {
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CUDA_HOME",
    "SLURM_JOB_ID",
}
_PASSED_PREFIXES = ("LC_", "NVIDIA_")
_PROOF = "topobench sets that itself, to give NCCL its ring and to prove what it did"
_SECRET_NAME = re.compile(
    r"TOKEN|(?<!P)KEY|SECRET|PASSW|PASSPHRASE|_PWD$|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE
)
"""NCCL_IB_PKEY, a partition, is none."""
_SECRET_SETTING = re.compile(
    r"(\b\w*(?:token|api_?key|access_?key|secret|password|passwd|credentials?)\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|\S+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Environment:
    """
    Variables for the workers of one batch.

    Args:
        variables: As passed; may hold secrets, never stored.
        stored: What explains a number, secrets masked.
        warnings: Host settings that were not passed, files that change NCCL.
    """

    variables: Mapping[str, str] = field(repr=False)
    stored: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def mask(self, text: str) -> str:
        """Text without the secrets this environment holds, or what looks like one."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return mask_text(text)


def build(
    cell: Cell,
    host: Mapping[str, str],
    *,
    sweep: str,
    site: Mapping[str, str],
    package_root: Path,
    interface: str | None = None,
) -> Environment:
    """
    The environment for the workers of a cell.

    Args:
        host: The agent's own environment.
        site: The ``env:`` block of the config, cluster and host merged.
        package_root: Folder that holds the package topobench.
        interface: Network interface that gangs meet on.
    """
    fixed = _fixed(cell, sweep, interface)
    safety = env_arms.forbidding(host, site)
    passed = {k: v for k, v in host.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}
    asked, own = {**site, **cell.arm.env}, nccl_run.own_settings(cell)
    variables = {**passed, **asked, **safety, **fixed}
    variables = {key: value for key, value in variables.items() if key not in own}
    variables["PYTHONPATH"] = ":".join(
        p for p in (str(package_root), variables.get("PYTHONPATH", "")) if p
    )
    if token := host.get(processes.DRIVER):
        variables[processes.DRIVER] = token
    warnings = [
        *_ignored(asked, {**safety, **fixed}),
        *(
            f"env_ignored: {key}={asked[key]} of the config; {_PROOF}"
            for key in own
            if key in asked
        ),
        *_not_passed(host, variables),
    ]
    return Environment(
        variables=variables,
        stored=_stored(variables),
        warnings=(*warnings, *nccl_files({**host, **variables})),
        secrets=frozenset(
            v for k, v in {**host, **variables}.items() if _SECRET_NAME.search(k) and len(v) >= 8
        ),
    )


def conflict(cell: Cell, host: Mapping[str, str], found: Environment) -> Reason | None:
    """
    Why an arm cannot be had here: what it asks for is forbidden, or never left to arms.

    Args:
        host: The agent's own environment.
        found: What the cell's workers would get.
    """
    asked = cell.arm.env
    files = (settings for _, settings in _nccl_files({**host, **found.variables}))
    if reason := env_arms.refusal(asked, host, *files, found.variables):
        return reason
    for key, value in sorted(asked.items()):
        if key in nccl_run.own_settings(cell):
            text = f"{_PROOF}; the arm asks for {key}={value}"
            return Reason(ReasonCode.UNSUPPORTED, text)
        got = found.variables.get(key)
        if got != value and key != "PYTHONPATH":  # our own package stands before it
            return Reason(
                ReasonCode.UNSUPPORTED,
                f"workers always get {key}={mask_value(key, got or '')}; the arm asks for "
                f"{key}={mask_value(key, value)}",
            )
    return None


def nccl_files(host: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """Warnings that name the settings of NCCL's own files, which no variable shows."""
    return [
        f"nccl_conf: {path} sets {', '.join(sorted(settings)) or 'nothing'}"
        for path, settings in _nccl_files(host, root)
    ]


def _nccl_files(
    host: Mapping[str, str], root: Path = Path("/")
) -> Iterator[tuple[Path, dict[str, str]]]:
    """NCCL's own files, as far as they exist, with what they set."""
    files = [root / "etc/nccl.conf"]
    if host.get("HOME"):
        files.append(Path(host["HOME"]) / ".nccl.conf")
    if host.get("NCCL_CONF_FILE"):
        files.append(Path(host["NCCL_CONF_FILE"]))
    for path in files:
        try:
            data = user_files.read_regular(path, _LONGEST_NCCL_FILE)
        except OSError:
            continue
        lines = data.decode(errors="replace").splitlines()
        pairs = (line.split("#")[0].partition("=") for line in lines)
        yield path, {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def mask_text(text: str) -> str:
    """Text without passwords in URLs and without values of settings named like secrets."""
    return _SECRET_SETTING.sub(rf"\1{MASK}", mask_urls(text))


def mask_value(key: str, value: str) -> str:
    """A variable's value, as it may be stored or shown."""
    return MASK if _SECRET_NAME.search(key) else mask_urls(value)


def _fixed(cell: Cell, sweep: str, interface: str | None) -> dict[str, str]:
    fixed = {
        processes.SWEEP: sweep,
        "OMP_NUM_THREADS": str(cell.arm.binding.threads),
        "CUDA_VISIBLE_DEVICES": ",".join(cell.worker_devices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "NCCL_RAS_ENABLE": "0",
    }
    return fixed | ({"GLOO_SOCKET_IFNAME": interface} if interface else {})


def _ignored(asked: Mapping[str, str], stronger: Mapping[str, str]) -> list[str]:
    return [
        f"env_ignored: {key}={mask_value(key, asked[key])} of the config; workers always get "
        f"{key}={stronger[key]}"
        for key in sorted(asked.keys() & stronger.keys())
        if asked[key] != stronger[key]
    ]


def _not_passed(host: Mapping[str, str], variables: Mapping[str, str]) -> Iterable[str]:
    """Performance settings of the host that workers do not get."""
    left = sorted(
        k for k, value in host.items() if env_arms.changes_speed(k) and k not in variables and value
    )
    if left:
        line = ", ".join(f"{k}: {mask_value(k, host[k])!r}" for k in left)
        yield (
            f"env_not_passed: set on the host but not passed to workers: {', '.join(left)}; "
            f"to pass them write  env: {{{line}}}"
        )


def _stored(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        k: mask_value(k, v)
        for k, v in sorted(variables.items())
        if k not in _PRIVATE and not k.startswith(_PRIVATE_PREFIXES)
    }
