"""A selected probe with the values of its parameters, and the cases they make; pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from topobench.config import ProbeChoice
from topobench.config_fields import SHARING
from topobench.errors import UsageError
from topobench.probes import registry
from topobench.probes.protocol import Probe, build, fields_of, suited
from topobench.reading import Case, Scalar
from topobench.selection import GPU_OR_CPU, HostGpus
from topobench.user_command import Definition

TORCH = "torch"
TORCH_SECONDS = 2.0
"""To import it, where no GPU is used."""
GPUS = "gpus"
"""Parameter of a user's command: which GPUs its process sees."""
AT_ONCE = "at_once"
"""Parameter of probes that measure one GPU, or all GPUs of a host at the same time."""
SHAPE = "shape"
"""Parameter of such probes: the model."""


class Timed(NamedTuple):
    """
    A case and about how long it takes.

    Args:
        seconds: In a worker that ran others like it.
        first_uses: What is made or loaded once in a worker, and the seconds it takes there.
    """

    case: Case
    seconds: float
    first_uses: tuple[tuple[str, float], ...] = ()


class Choice:
    """
    A selected probe with the values of its parameters; shared by all hosts.

    Args:
        on_cpus: A probe of GPUs or CPUs runs on CPUs.
        suited: Parameters that the user left to the planner.
    """

    def __init__(
        self, choice: ProbeChoice, *, on_cpus: bool = False, suited: frozenset[str] = frozenset()
    ) -> None:
        self._on_cpus = on_cpus
        self.suited = suited
        self.probe: type[Probe] = registry.load(choice.name)
        self.values: dict[str, tuple[Scalar, ...]] = {
            name: choice.params.get(name, (cast(Scalar, declared.default),))
            for name, declared in fields_of(self.probe).items()
        }
        self._cases: dict[Any, tuple[Timed, ...]] = {}
        self._placed: dict[bool, Choice] = {}

    def cases(self, **fixed: Scalar) -> tuple[Timed, ...]:
        """
        One case for each combination of values, in the order listed.

        Args:
            fixed: Values that the planner sets; those of parameters not declared are ignored.

        Raises:
            UsageError: The probe refuses a combination.
        """
        key = tuple(fixed.items())
        if key not in self._cases:
            values = {n: (fixed[n],) if n in fixed else v for n, v in self.values.items()}
            products = itertools.product(*values.values())
            self._cases[key] = tuple(
                self._timed(dict(zip(values, product, strict=True))) for product in products
            )
        return self._cases[key]

    def on(self, gpus: HostGpus) -> Choice:
        """
        The choice for a host with these GPUs; ``auto`` becomes what suits GPUs or CPUs.

        A probe of either runs on CPUs only where there is no GPU: a broken one is told.
        """
        if GPU_OR_CPU not in self.probe.needs:
            return self
        absent = gpus.absent
        if absent not in self._placed:
            params = {name: self._suited(name, absent) for name in self.values}
            if absent and AT_ONCE in params:
                params[AT_ONCE] = ("one",)
            self._placed[absent] = Choice(
                ProbeChoice(self.probe.name, params),
                on_cpus=absent,
                suited=frozenset(n for n, found in params.items() if found != self.values[n]),
            )
        return self._placed[absent]

    def unshared(self, **fixed: Scalar) -> tuple[Timed, ...]:
        """The cases of one process each."""
        if 1 not in self.values.get(SHARING, (1,)):
            return ()
        return self.cases(tensor_parallel=1, **fixed)

    def alone(self, gpus: int) -> tuple[Timed, ...]:
        """The cases of one GPU; on a host with a single one, that is all of them at once."""
        wanted = self.values.get(AT_ONCE)
        if wanted is None:
            return self.unshared()
        return self.unshared(at_once="one") if "one" in wanted or gpus == 1 else ()

    def together(self, gpus: int) -> tuple[Timed, ...]:
        """The cases of all GPUs at once."""
        asked = "all" in self.values.get(AT_ONCE, ())
        return self.unshared(at_once="all") if asked and gpus > 1 else ()

    def shared(self, ranks: int) -> tuple[Timed, ...]:
        """The cases of a model that so many GPUs or processes share."""
        return self.cases(tensor_parallel=ranks, at_once="one")

    def messages(self, ranks: int) -> tuple[int, ...]:
        """Bytes that so many GPUs add up at once, for each case of a model that they share."""
        found = (build(self.probe, timed.case.params) for timed in self.shared(ranks))
        sizes = (getattr(made, "message_bytes", None) for made in found)
        return tuple(dict.fromkeys(size() for size in sizes if size is not None))

    @property
    def sharing(self) -> tuple[int, ...]:
        """Between how many GPUs or processes a model is shared; nothing for other probes."""
        return tuple(n for n in self.values.get(SHARING, ()) if isinstance(n, int) and n > 1)

    @property
    def on_gpus(self) -> bool:
        """Whether it runs on GPUs; a user's command says so itself."""
        if GPU_OR_CPU in self.probe.needs:
            return not self._on_cpus
        return "cuda" in self.probe.needs or self.values.get(GPUS) in (("each",), ("all",))

    @property
    def environments(self) -> tuple[Mapping[str, str], ...]:
        """Settings of a user's command that are compared as arms; at least an empty one."""
        (text,) = self.values.get("definition", (None,))
        found = Definition.from_text(str(text)) if text is not None else None
        return found.settings if found is not None else ({},)

    @property
    def own_program(self) -> bool:
        """Whether the user says where its program is."""
        return any(self.values.get(k, (None,)) != (None,) for k in ("program", "folder"))

    def gang_sizes(self) -> tuple[int, ...]:
        """The values of ``ranks``; pairs for a collective without that parameter."""
        return tuple(r for r in self.values.get("ranks", (2,)) if isinstance(r, int))

    def _suited(self, name: str, on_cpus: bool) -> tuple[Scalar, ...]:
        """Values of a parameter on GPUs or CPUs, each once."""
        declared = fields_of(self.probe)[name]
        found = (suited(declared, value, on_cpus=on_cpus) for value in self.values[name])
        return tuple(dict.fromkeys(found))

    def _timed(self, params: dict[str, Scalar]) -> Timed:
        try:
            return timed(self.probe, params)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self.probe.name} cannot take {params}: {error}") from error


def timed(probe: type[Probe], params: Mapping[str, Scalar]) -> Timed:
    """
    A case of a probe, and how long it takes.

    Raises:
        TypeError: It has no such parameter.
        ValueError: It refuses a value.
    """
    made = build(probe, params)
    declared = fields_of(probe)
    named = {
        name: value
        for name, value in params.items()
        if not (declared[name].metadata["later"] and value == declared[name].default)
    }
    uses: Mapping[str, float] = getattr(made, "first_uses", dict)()
    if TORCH in probe.needs:
        uses = {TORCH: TORCH_SECONDS, **uses}
    case = Case(probe.name, probe.version, named)
    return Timed(case, made.estimated_seconds(), tuple(uses.items()))
