"""Criteria that accept or reject a measured number. A criterion is the same at all scales.

A measurement m with standard error u is compared with a prediction. The tolerance is widened by c standard errors,
where c = 4 for many seeds (one false alarm in 16,000 for a Gaussian) and Student's t quantile of the same probability
for few. A check may state the value that an alternative to the claim predicts. Where the data cannot decide, or could
not have rejected that alternative, the verdict is `inconclusive` and comes with the number of seeds that would decide.
"""

import math
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from scipy import special

from undertow.estimate import t_quantile

__all__ = [
    "POWER", "SIGMAS", "Above", "AtLevel", "Below", "Check", "Criterion", "Judgement", "TextCriterion", "Verdict",
    "Within", "criterion_from_json", "judge", "power",
]  # fmt: skip

SIGMAS = 4.0
POWER = 0.99
"""The least probability with which a check must be able to reject its alternative."""

Verdict = Literal["holds", "fails", "corrected", "inconclusive", "error"]
Judgement = tuple[Verdict, int | None]
"""A verdict, and for an inconclusive one the number of seeds that would decide."""


@dataclass(frozen=True)
class Within:
    """The criterion |measured - predicted| <= tolerance + c u, with c u at most `resolution`.

    u is the standard error of the measurement, and c is 4 for many seeds and a quantile of Student's t for few.

    >>> from undertow.verification import Within
    >>> print(Within(tolerance=0.01, resolution=0.1))
    within 0.01 + 4 standard errors, able to detect 0.1
    """

    tolerance: float | int
    resolution: float | int
    kind: ClassVar = "within"
    allowed: ClassVar[tuple[float, float] | None] = None

    def __str__(self) -> str:
        return f"within {self.tolerance:g} + {SIGMAS:g} standard errors, able to detect {self.resolution:g}"

    def judge(self, check: "Check", seeds: int) -> Judgement:
        """Return the verdict on a finite measurement."""
        width = _width(check, seeds)
        if abs(check.measured - check.predicted) > self.tolerance + width:
            return "fails", None
        if check.printed is not None and abs(check.measured - check.printed) <= max(width, self.tolerance):
            return "inconclusive", _seeds(seeds, 2 * width, abs(check.predicted - check.printed))
        if width > self.resolution:
            return "inconclusive", _seeds(seeds, width, self.resolution)
        return _with_power(check, seeds, "holds" if check.printed is None else "corrected", self.tolerance)

    def rejection_probability(self, check: "Check", alternative: float | int, seeds: int) -> float:
        """Return the probability that a measurement around `alternative` is not within the tolerance."""
        margin = self.tolerance + _width(check, seeds)
        distance = abs(alternative - check.predicted)
        return min(1.0, _exceeds(distance - margin, check) + _exceeds(-distance - margin, check))

    def to_json(self) -> dict[str, str | float | int]:
        """Return the criterion as plain values."""
        return {"kind": self.kind} | asdict(self)


@dataclass(frozen=True)
class Below:
    """The criterion measured + c u < bound, with c and u as in `Within`.

    >>> from undertow.verification import Below
    >>> print(Below(0.5))
    below 0.5 by 4 standard errors
    """

    bound: float | int
    kind: ClassVar = "below"

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval of values that the claim allows."""
        return -math.inf, float(self.bound)

    def __str__(self) -> str:
        return f"below {self.bound:g} by {SIGMAS:g} standard errors"

    def judge(self, check: "Check", seeds: int) -> Judgement:
        """Return the verdict on a finite measurement."""
        return _judge_margin(self.bound - check.measured, check, seeds)

    def rejection_probability(self, check: "Check", alternative: float | int, seeds: int) -> float:
        """Return the probability that a measurement around `alternative` is not below the bound."""
        return _margin_is_missed(alternative - self.bound, check, seeds)

    def to_json(self) -> dict[str, str | float | int]:
        """Return the criterion as plain values."""
        return {"kind": self.kind} | asdict(self)


@dataclass(frozen=True)
class Above:
    """The criterion measured - c u > bound, with c and u as in `Within`.

    >>> from undertow.verification import Above
    >>> print(Above(0.5))
    above 0.5 by 4 standard errors
    """

    bound: float | int
    kind: ClassVar = "above"

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval of values that the claim allows."""
        return float(self.bound), math.inf

    def __str__(self) -> str:
        return f"above {self.bound:g} by {SIGMAS:g} standard errors"

    def judge(self, check: "Check", seeds: int) -> Judgement:
        """Return the verdict on a finite measurement."""
        return _judge_margin(check.measured - self.bound, check, seeds)

    def rejection_probability(self, check: "Check", alternative: float | int, seeds: int) -> float:
        """Return the probability that a measurement around `alternative` is not above the bound."""
        return _margin_is_missed(self.bound - alternative, check, seeds)

    def to_json(self) -> dict[str, str | float | int]:
        """Return the criterion as plain values."""
        return {"kind": self.kind} | asdict(self)


@dataclass(frozen=True)
class AtLevel:
    """The criterion that the p-value of a stated test, which is the measured number, is at least `level`.

    >>> from undertow.verification import AtLevel
    >>> print(AtLevel(0.001, "Kolmogorov-Smirnov"))
    Kolmogorov-Smirnov, level 0.001
    """

    level: float | int
    test: str
    kind: ClassVar = "level"

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval of p-values that the claim allows."""
        return float(self.level), math.inf

    def __str__(self) -> str:
        return f"{self.test}, level {self.level:g}"

    def judge(self, check: "Check", seeds: int) -> Judgement:
        """Return the verdict on a finite p-value."""
        if check.measured < self.level:
            return "fails", None
        powerless = check.alternative is not None and not check.alternative < self.level
        return ("inconclusive", seeds * 2) if powerless else ("holds", None)

    def rejection_probability(self, check: "Check", alternative: float | int, seeds: int) -> float:
        """Return 1 if the p-value under the alternative is below the level, else 0."""
        return float(alternative < self.level)

    def to_json(self) -> dict[str, str | float | int]:
        """Return the criterion as plain values."""
        return {"kind": self.kind} | asdict(self)


@dataclass(frozen=True)
class TextCriterion:
    """A criterion that an earlier version of undertow stored as text. It can be shown, not judged."""

    text: str
    kind: ClassVar = "text"

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> str:
        """Return the text."""
        return self.text


Criterion = Within | Below | Above | AtLevel
_KINDS: dict[str, type[Criterion]] = {kind.kind: kind for kind in (Within, Below, Above, AtLevel)}


def criterion_from_json(data: "dict[str, str | float | int] | str") -> Criterion | TextCriterion:
    """Return the criterion that `to_json` wrote; text is what earlier versions stored.

    >>> from undertow.verification.criterion import Below, criterion_from_json
    >>> criterion_from_json(Below(0.5).to_json())
    Below(bound=0.5)
    """
    if isinstance(data, str):
        return TextCriterion(data)
    values = dict(data)
    kind = values.pop("kind")
    if kind not in _KINDS:
        raise ValueError(f"`criterion_from_json`: the kind {kind!r} is none of {', '.join(_KINDS)}.")
    return _KINDS[str(kind)](**values)  # ty: ignore[invalid-argument-type]


@dataclass(frozen=True)
class Check:
    """A measured number with its prediction, and the criterion that compares them.

    `what` is the quantity in words, and `uncertainty` the standard error of `measured`. `printed` is the paper's value
    where the errata list corrects it. `alternative` is the value that the claim's alternative predicts for the measured
    number; for a test at a level it is the p-value of the same data under the alternative. `samples` is the number of
    independent values behind `uncertainty`: by default the seeds of the measurement, `math.inf` where the standard
    error is known rather than estimated.

    >>> from undertow.verification.criterion import Check, Within, judge
    >>> check = Check("mean", measured=1.02, predicted=1.0, uncertainty=0.01, criterion=Within(0.0, 0.1))
    >>> judge(check, seeds=1000)
    ('holds', None)
    """

    what: str
    measured: float
    predicted: float
    uncertainty: float
    criterion: Criterion
    printed: float | None = None
    alternative: float | None = None
    samples: int | float | None = None


def judge(check: Check, seeds: int) -> Judgement:
    """Return the verdict on one check, and where it is inconclusive the number of seeds that would decide."""
    if not math.isfinite(check.measured) or not math.isfinite(check.uncertainty) or check.uncertainty < 0:
        return "fails", None
    return check.criterion.judge(check, seeds)


def power(check: Check, seeds: int) -> float | None:
    """Return the probability that the check does not hold if its alternative is true; None without an alternative.

    The measurement is then taken as Gaussian around the alternative, with the standard error that was measured. A
    test at a level has no such formula; its alternative is the p-value itself, so the answer there is 0 or 1.
    """
    return None if check.alternative is None else check.criterion.rejection_probability(check, check.alternative, seeds)


def _judge_margin(margin: float | int, check: Check, seeds: int) -> Judgement:
    """Return the verdict on a measurement that lies inside its bound by `margin`."""
    width = _width(check, seeds)
    if margin < -width or (check.uncertainty == 0 and margin <= 0):
        return "fails", None
    if margin <= width:
        return "inconclusive", _seeds(seeds, width, abs(margin))
    return _with_power(check, seeds, "holds", 0.0)


def _margin_is_missed(excess: float | int, check: Check, seeds: int) -> float:
    """Return the probability that a measurement whose mean is outside its bound by `excess` does not hold."""
    return _exceeds(excess + _width(check, seeds), check) if check.uncertainty > 0 else float(excess >= 0)


def _exceeds(distance: float | int, check: Check) -> float:
    """Return the probability that a Gaussian error with the standard error of the check is below `distance`."""
    return float(special.ndtr(distance / check.uncertainty)) if check.uncertainty > 0 else float(distance > 0)


def _width(check: Check, seeds: int) -> float:
    """Return c u: four standard errors of many samples, the t quantile of the same probability for few."""
    if check.uncertainty == 0:
        return 0.0
    samples = seeds if check.samples is None else check.samples
    return t_quantile(float(special.ndtr(SIGMAS)), samples) * check.uncertainty


def _with_power(check: Check, seeds: int, verdict: Verdict, tolerance: float | int) -> Judgement:
    """Return the verdict, unless the stated alternative would have passed as well."""
    probability = power(check, seeds)
    if probability is None or probability >= POWER:
        return verdict, None
    assert check.alternative is not None
    gap = abs(check.alternative - check.predicted) - tolerance
    return "inconclusive", _seeds(seeds, 2 * _width(check, seeds), max(gap, 0.0))


def _seeds(seeds: int, width: float, wanted: float | int) -> int:
    """Return the seeds that reduce a standard error from `width` to `wanted`: it falls as 1/sqrt(seeds).

    The result is at most 2^31.
    """
    needed = seeds * (width / wanted) ** 2 if wanted > width * 1e-12 else math.inf
    return math.ceil(min(needed, 2**31))
