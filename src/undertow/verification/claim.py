"""A claim with the experiment that tests it, its measurement and its verdict."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from undertow.execution.packs import OWN_PACKS, pack_name
from undertow.execution.provenance import Parameter, Parameters
from undertow.figures.compare import compare
from undertow.verification.criterion import Check, Verdict, judge

if TYPE_CHECKING:
    import xarray
    from jaxtyping import Array, Key
    from matplotlib.figure import Figure

__all__ = [
    "PAPERS", "SCALES", "Claim", "ClaimError", "Measurement", "NoParameters", "Plant", "Scale", "draw_checks",
    "overall",
]  # fmt: skip

Scale = Literal["smoke", "default", "full"]
Plant = Callable[[], AbstractContextManager[object]]
"""A function that returns a context in which the alternative of a claim is true."""

PAPERS: tuple[str, ...] = tuple(map(pack_name, OWN_PACKS))
"""The papers of undertow's own packs."""
SCALES: tuple[Scale, ...] = ("smoke", "default", "full")

P = TypeVar("P", bound=Parameters)


class ClaimError(Exception):
    """Error for a claim that cannot be run or judged; the message gives the reason in one sentence."""


@dataclass(frozen=True)
class NoParameters:
    """The parameters of a claim without scales."""


def _no_data() -> "xarray.Dataset":
    import xarray

    return xarray.Dataset()


@dataclass(frozen=True)
class Measurement:
    """The measurement of an experiment: its checks, the headline first, and the data of its figure.

    Without `data` the numbers of the checks are stored. `seeds` is the number of independent values behind the
    standard errors of checks that do not state their own `samples`.

    >>> from undertow.verification import Check, Claim, Measurement, Within
    >>> def measure(key):
    ...     share = Check("share", 0.51, 0.5, 0.01, Within(tolerance=0.0, resolution=0.1), alternative=0.6)
    ...     return Measurement((share,), seeds=2500, note="tosses of a coin")
    >>> claim = Claim("A coin shows heads in half of the tosses.", measure)
    >>> measurement = claim.run(claim.scales["smoke"], None)
    >>> print(measurement.checks[0].measured, measurement.seeds, measurement.note)
    0.51 2500 tosses of a coin
    """

    checks: tuple[Check, ...]
    data: "xarray.Dataset" = field(default_factory=_no_data)
    seeds: int = 1
    diverged: int = 0
    """The number of runs that diverged; they are left out."""
    note: str = ""
    """A remark that the report shows below the checks."""


def draw_checks(measurement: Measurement, parameters: object) -> "Figure":
    """Draw every check beside its prediction: the figure of claims that define none of their own."""
    return compare(measurement.checks)


@dataclass(frozen=True)
class Claim(Generic[P]):
    """A statement with the experiment that tests it.

    A claim needs a statement and `measure`. Without `scales`, `measure(key)` runs the experiment; with them it is
    `measure(parameters, key)`. It returns a `Measurement`, or its checks alone. Every check states its criterion, and
    the value that the alternative predicts.

    >>> from undertow.verification import Below, Check, Claim
    >>> small = Claim("The number is below 2.", lambda key: Check("number", 1.0, 0.0, 0.0, Below(2.0), alternative=3.0))
    >>> small.run(small.scales["smoke"], None).checks[0].measured
    1.0
    """

    statement: str
    measure: "Callable[..., Measurement | Check | Sequence[Check]]"
    id: str = ""
    """The name of the claim; by default that of the variable that holds the claim, with hyphens."""
    paper: str = ""
    """The paper; by default the name of the pack, or of the file."""
    place: str = ""
    """The place of the claim in the paper, such as a theorem or an equation."""
    equation: str = ""
    """The formula of the statement as plain text, which the pages typeset."""
    scales: dict[Scale, P] = field(default_factory=dict)
    """The parameters, a frozen dataclass, at each scale; scales differ in seeds, steps and sizes, never in criteria."""
    draw: "Callable[[Measurement, P], Figure]" = draw_checks
    """`draw(measurement, parameters)` returns the figure; by default the checks beside their predictions."""
    alternative: str = ""
    """The nearest plausible statement that would make the claim false, which its checks must be able to reject."""
    plant: Plant | None = field(default=None, compare=False)
    """A context in which the alternative is true, such as `replaced` makes; the claim must fail in it."""
    rests_on: tuple[str, ...] = ()
    """The names of the claims that this one rests on."""
    controls: bool = False
    """Whether some checks are controls, which state no value of the alternative."""
    accelerated: bool = field(default=False, compare=False)
    """Whether the runs fill an accelerator; small models are faster on a processor core."""
    long: bool = field(default=False, compare=False)
    """Whether the experiment takes minutes at the largest scale. Such claims start first, so that no worker waits."""
    module: str = field(default="", compare=False)

    COLUMNS: ClassVar = ("measured", "predicted", "uncertainty", "verdict")
    VERDICTS: ClassVar = typing.get_args(Verdict)

    def __post_init__(self) -> None:
        if not self.scales:
            object.__setattr__(self, "scales", dict.fromkeys(SCALES, NoParameters()))
        texts = ("statement", "id", "paper", "place", "equation", "alternative")
        wanted: list[tuple[tuple[str, ...], Callable[[object], bool], str]] = [
            (texts, _is_text, "give text"),
            (("measure", "draw"), callable, "give a function"),
            (("plant",), lambda plant: plant is None or callable(plant), "give a function that returns a context"),
            (("rests_on",), _are_names, "give a tuple of names of claims"),
        ]
        for names, right, advice in wanted:
            for name, value in ((name, getattr(self, name)) for name in names):
                if not right(value):
                    raise ValueError(f"claim {self.id or self.statement!r}: `{name}` is {value!r}; {advice}.")
        if not isinstance(self.scales, dict) or set(self.scales) != set(SCALES):
            raise ValueError(
                f"claim {self.id or self.statement!r}: give parameters for the scales {', '.join(SCALES)}."
            )
        if len({type(value) for value in self.scales.values()}) > 1 or not all(map(_is_record, self.scales.values())):
            raise ValueError(f"claim {self.id or self.statement!r}: give objects of one dataclass as `scales`.")
        for name, value in ((name, value) for one in SCALES for name, value in self.parameters(one).items()):
            if not isinstance(value, Parameter):
                advice = "parameters are Python numbers, text or flags"
                raise ValueError(f"claim {self.id or self.statement!r}: `scales` has {name} = {value!r}; {advice}.")

    def parameters(self, scale: Scale) -> dict[str, Parameter]:
        """Return the parameters at a scale, as plain values."""
        return dataclasses.asdict(self.scales[scale])

    def run(self, parameters: P, key: "Key[Array, '']") -> Measurement:
        """Run the experiment and return its measurement; raise a `ClaimError` if `measure` returns something else."""
        arguments = (key,) if isinstance(parameters, NoParameters) else (parameters, key)
        try:
            inspect.signature(self.measure).bind(*arguments)
        except TypeError:
            call = "measure(key)" if len(arguments) == 1 else "measure(parameters, key)"
            raise ClaimError(f"`measure` has other arguments; it is called as {call}.") from None
        returned = self.measure(*arguments)
        made = returned if isinstance(returned, Measurement) else None
        checks = returned if made is None else made.checks
        if isinstance(checks, Check):
            checks = (checks,)
        if not isinstance(checks, tuple | list) or not checks or not all(isinstance(c, Check) for c in checks):
            what = _kind(checks) if made is None else f"a Measurement whose checks are {_kind(checks)}"
            raise ClaimError(f"`measure` returned {what}; return a Measurement, a Check or a tuple of Checks.")
        if made is not None:
            return dataclasses.replace(made, checks=tuple(checks))
        samples = [int(c.samples) for c in checks if isinstance(c.samples, Real) and c.samples < 2**31]
        return Measurement(tuple(checks), seeds=max(samples, default=1))

    def columns(self, parameters: P, key: "Key[Array, '']") -> dict[str, list[float]]:
        """Run the experiment and return one column of numbers per name in `COLUMNS`, with an entry for each check.

        A verdict is its index in `VERDICTS`.
        """
        measurement = self.run(parameters, key)
        columns = {name: [float(getattr(check, name)) for check in measurement.checks] for name in self.COLUMNS[:-1]}
        verdicts = [judge(check, measurement.seeds)[0] for check in measurement.checks]
        return columns | {"verdict": [float(self.VERDICTS.index(verdict)) for verdict in verdicts]}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_names(values: object) -> bool:
    return isinstance(values, tuple | list) and all(map(_is_text, values))


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _kind(value: object) -> str:
    """Return what a value is, for a message."""
    if isinstance(value, tuple | list):
        inside = ", ".join(sorted({type(item).__name__ for item in value}))
        return f"a {type(value).__name__} of {inside}" if inside else f"an empty {type(value).__name__}"
    return "nothing" if value is None else f"a value of the type {type(value).__name__}"


def overall(measurement: Measurement) -> tuple[Verdict, int | None]:
    """Return the verdict of a claim: the worst of its checks, where `corrected` takes precedence over `holds`."""
    judged = [judge(check, measurement.seeds) for check in measurement.checks]
    verdicts = [verdict for verdict, _ in judged]
    for verdict in ("fails", "inconclusive", "corrected"):
        if verdict in verdicts:
            needed = [seeds for v, seeds in judged if v == verdict and seeds is not None]
            return verdict, max(needed, default=None)
    return "holds", None
