"""A claim of a paper with the experiment that tests it, its measurement and its verdict."""

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from undertow.execution.provenance import Parameter, Parameters
from undertow.figures.compare import compare
from undertow.verification.criterion import Check, Verdict, judge

if TYPE_CHECKING:
    import xarray
    from jaxtyping import Array, Key
    from matplotlib.figure import Figure

__all__ = [
    "PAPERS", "SCALES", "Claim", "Measurement", "Paper", "Scale", "draw_checks", "draw_checks_on_log_axis", "overall",
]  # fmt: skip

Paper = Literal["heterogeneity", "zero_loss", "noise_equilibrium", "optimisers"]
Scale = Literal["smoke", "default", "full"]

PAPERS: tuple[Paper, ...] = ("heterogeneity", "zero_loss", "noise_equilibrium", "optimisers")
SCALES: tuple[Scale, ...] = ("smoke", "default", "full")

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Measurement:
    """The measurement of an experiment: its checks, the headline first, and the data of its figure."""

    checks: tuple[Check, ...]
    data: "xarray.Dataset"
    seeds: int
    diverged: int = 0
    note: str = ""


def draw_checks(measurement: Measurement, parameters: object) -> "Figure":
    """Draw every check beside its prediction: the figure of claims that define none of their own."""
    return compare(measurement.checks)


def draw_checks_on_log_axis(measurement: Measurement, parameters: object) -> "Figure":
    """Draw every check beside its prediction on a logarithmic axis, for errors of any order of magnitude."""
    return compare(measurement.checks, log=True)


@dataclass(frozen=True)
class Claim(Generic[P]):
    """A statement of a paper with the experiment that tests it.

    `alternative` names the nearest plausible statement that the experiment rejects; its checks carry the value that
    the alternative predicts. `scales` gives the experiment's parameters (one frozen dataclass) at each scale; scales
    differ in seeds, steps and sizes only, never in the criterion. `measure(parameters, key)` runs it,
    `draw(measurement, parameters)` returns its figure; by default that shows the checks beside their predictions.

    >>> from undertow.verification import claims
    >>> claim = claims["sensing-factor-two"]
    >>> print(claim.paper, claim.place)
    heterogeneity Eq. (2) against Eq. (3)
    """

    id: str
    paper: Paper
    place: str
    statement: str
    equation: str
    scales: dict[Scale, P]
    measure: "Callable[[P, Key[Array, '']], Measurement]"
    draw: "Callable[[Measurement, P], Figure]" = draw_checks
    alternative: str = ""
    """The nearest plausible statement that would make the claim false, which its checks must be able to reject."""
    accelerated: bool = field(default=False, compare=False)
    """Whether its runs fill an accelerator; small models are faster on a processor core."""
    long: bool = field(default=False, compare=False)
    """Whether it takes minutes at the largest scale; it then starts first, so that no other worker waits for it."""
    module: str = field(default="", compare=False)

    COLUMNS: ClassVar = ("measured", "predicted", "uncertainty", "verdict")
    VERDICTS: ClassVar = typing.get_args(Verdict)

    def __post_init__(self) -> None:
        if set(self.scales) != set(SCALES):
            raise ValueError(f"claim {self.id!r}: give parameters for the scales {', '.join(SCALES)}.")

    def parameters(self, scale: Scale) -> dict[str, Parameter]:
        """Return the parameters at a scale, as plain values."""
        return dataclasses.asdict(self.scales[scale])

    def columns(self, parameters: P, key: "Key[Array, '']") -> dict[str, list[float]]:
        """Run the experiment and return one column of numbers per name in `COLUMNS`, with an entry for each check.

        A verdict is its index in `VERDICTS`.
        """
        measurement = self.measure(parameters, key)
        columns = {name: [float(getattr(check, name)) for check in measurement.checks] for name in self.COLUMNS[:-1]}
        verdicts = [judge(check, measurement.seeds)[0] for check in measurement.checks]
        return columns | {"verdict": [float(self.VERDICTS.index(verdict)) for verdict in verdicts]}


def overall(measurement: Measurement) -> tuple[Verdict, int | None]:
    """Return the verdict of a claim: the worst of its checks, where `corrected` takes precedence over `holds`."""
    judged = [judge(check, measurement.seeds) for check in measurement.checks]
    verdicts = [verdict for verdict, _ in judged]
    for verdict in ("fails", "inconclusive", "corrected"):
        if verdict in verdicts:
            needed = [seeds for v, seeds in judged if v == verdict and seeds is not None]
            return verdict, max(needed, default=None)
    return "holds", None
