"""A worker's hold on its binding: take it, and prove before and after that it holds."""

from __future__ import annotations

import errno
from typing import Any

from topobench.errors import ProbeError, ResultInvalid
from topobench.probes import binding as kernel
from topobench.reading import Binding, MemoryPolicy, ReasonCode
from topobench.units import format_cpu_list, parse_cpu_list


class Grip:
    """
    The binding of this process, as asked and as the kernel granted it.

    Args:
        binding: What was asked for.
        denied: The host's memory policy calls are known to be refused: bind CPUs only.
    """

    def __init__(self, binding: Binding, *, denied: bool) -> None:
        self._binding = binding
        self._refusal = kernel.DENIED if denied else None
        self._granted: frozenset[int] = frozenset()
        self._seen: frozenset[int] = frozenset()
        self.inherited: dict[str, Any] = {}
        self.warnings: list[str] = []

    @property
    def cpus(self) -> str:
        """Union of the affinities of all threads at the last look, as a list string."""
        return format_cpu_list(self._seen)

    @property
    def cpu_node(self) -> int | None:
        """NUMA node of those CPUs, if one."""
        return kernel.node_of(self._seen)

    @property
    def memory_bound(self) -> bool:
        """Whether the kernel took a memory policy other than the default."""
        return self._refusal is None and self._binding.memory is not MemoryPolicy.DEFAULT

    def policy(self) -> str:
        """The memory policy now, or why it has none."""
        return self._refusal or kernel.get_policy()

    def take(self) -> None:
        """
        Bind this process; numactl may have done it, which this then repeats.

        Raises:
            ProbeError: The kernel allows none of the CPUs or NUMA nodes.
        """
        inherited_cpus = frozenset().union(*kernel.thread_cpus().values())
        self.inherited = {
            "cpus": format_cpu_list(inherited_cpus),
            "memory_policy": kernel.get_policy(),
        }
        self._take_cpus()
        self._take_memory()
        if self._binding.cpus is None and inherited_cpus < self._granted:
            self._warn_inherited(f"CPUs {self.inherited['cpus']} of {self.cpus}")
        if self._binding.cpus is None and ":" in self.inherited["memory_policy"]:
            self._warn_inherited(f"memory policy {self.inherited['memory_policy']}")

    def verify(self, when: str) -> None:
        """
        Prove that the binding holds.

        Args:
            when: ``before`` or ``after`` the measurement, for the message.

        Raises:
            ResultInvalid: A thread may run elsewhere, or the policy is another one.
        """
        threads = kernel.thread_cpus()
        self._seen = frozenset().union(*threads.values())
        if stray := self._seen - self._granted:
            raise ResultInvalid(
                ReasonCode.WRONG_BINDING,
                f"{when} the measurement a thread may run on CPUs {format_cpu_list(stray)}; "
                f"asked for were {format_cpu_list(self._granted)}",
            )
        wanted = kernel.policy_text(self._binding.memory, self._binding.memory_nodes)
        if self._refusal is None and (found := self.policy()) != wanted:
            raise ResultInvalid(
                ReasonCode.WRONG_BINDING,
                f"{when} the measurement the memory policy is {found}; asked for was {wanted}",
            )

    def _take_cpus(self) -> None:
        asked = None if self._binding.cpus is None else parse_cpu_list(self._binding.cpus)
        try:
            kernel.set_cpus(asked)
        except OSError as error:
            raise ProbeError(
                ReasonCode.CPU_NOT_ALLOWED,
                f"the kernel allows this process none of the CPUs {self._binding.cpus} ({error})",
            ) from error
        self._granted = self._seen = frozenset().union(*kernel.thread_cpus().values())
        if asked is not None and not set(asked) <= self._granted:
            raise ProbeError(
                ReasonCode.CPU_NOT_ALLOWED,
                f"asked for CPUs {self._binding.cpus}, the kernel allows only {self.cpus} of them",
            )

    def _take_memory(self) -> None:
        wanted, nodes = self._binding.memory, self._binding.memory_nodes
        if self._refusal is None:
            try:
                kernel.set_policy(wanted, nodes)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    raise ProbeError(
                        ReasonCode.MEM_NOT_ALLOWED,
                        f"the kernel allows no memory of NUMA nodes {format_cpu_list(nodes)}",
                    ) from error
                self._refusal = kernel.refusal(error)
        if self._refusal is not None and wanted is not MemoryPolicy.DEFAULT:
            self.warnings.append(
                f"{ReasonCode.MEM_POLICY_DENIED}: memory policy calls are {self._refusal} here "
                "(a container without SYS_NICE?); the CPUs are bound, the memory is not"
            )

    def _warn_inherited(self, what: str) -> None:
        self.warnings.append(
            f"{ReasonCode.INHERITED_BINDING}: the agent was started with {what} (taskset, numactl "
            "or a scheduler); this worker was reset to the whole allowed set"
        )
