"""How a number is judged: one criterion for all scales, with the uncertainty of the measurement in it.

A measurement m with standard error u is compared with a prediction. The tolerance is widened by c standard errors,
where c = 4 for many seeds (a false alarm in 16,000 for a Gaussian) and Student's t quantile of the same probability
for few. A check may name the value that an alternative to the claim predicts. Where the data cannot decide, or could
not have rejected that alternative, the verdict is `inconclusive` and says how many seeds would decide.
"""

import math
from dataclasses import dataclass
from typing import Literal

from scipy import special

from undertow.estimate import t_quantile

__all__ = [
    "POWER", "SIGMAS", "Above", "AtLevel", "Below", "Check", "Criterion", "Verdict", "Within", "judge", "power",
]  # fmt: skip

SIGMAS = 4.0
POWER = 0.99
"""The least probability with which a check must be able to reject its alternative."""

Verdict = Literal["holds", "fails", "corrected", "inconclusive", "error"]


@dataclass(frozen=True)
class Within:
    """|measured - predicted| <= tolerance + c u, and u small enough to see a deviation of `resolution`."""

    tolerance: float
    resolution: float

    def __str__(self) -> str:
        return f"within {self.tolerance:g} + {SIGMAS:g} standard errors, able to see {self.resolution:g}"


@dataclass(frozen=True)
class Below:
    """measured < bound, by c u."""

    bound: float

    def __str__(self) -> str:
        return f"below {self.bound:g} by {SIGMAS:g} standard errors"


@dataclass(frozen=True)
class Above:
    """measured > bound, by c u."""

    bound: float

    def __str__(self) -> str:
        return f"above {self.bound:g} by {SIGMAS:g} standard errors"


@dataclass(frozen=True)
class AtLevel:
    """The measured p-value of a stated test is at least `level`."""

    level: float
    test: str

    def __str__(self) -> str:
        return f"{self.test}, level {self.level:g}"


Criterion = Within | Below | Above | AtLevel


@dataclass(frozen=True)
class Check:
    """One number against its prediction.

    `printed` is the paper's value where the errata list says it is wrong. `alternative` is the value that the claim's
    alternative predicts for the measured number; for a test at a level it is the p-value of the same data under the
    alternative. `samples` is the number of independent values behind `uncertainty`: by default the seeds of the
    measurement, `math.inf` where the standard error is known rather than estimated.
    """

    what: str
    measured: float
    predicted: float
    uncertainty: float
    criterion: Criterion
    printed: float | None = None
    alternative: float | None = None
    samples: int | float | None = None


def judge(check: Check, seeds: int) -> tuple[Verdict, int | None]:
    """Return the verdict on one check, and where it is inconclusive the number of seeds that would decide."""
    m, u, criterion = check.measured, check.uncertainty, check.criterion
    if not math.isfinite(m) or not math.isfinite(u) or u < 0:
        return "fails", None
    if isinstance(criterion, AtLevel):
        if m < criterion.level:
            return "fails", None
        blind = check.alternative is not None and not check.alternative < criterion.level
        return ("inconclusive", seeds * 2) if blind else ("holds", None)
    wide = _width(check, seeds)
    if isinstance(criterion, Below | Above):
        margin = criterion.bound - m if isinstance(criterion, Below) else m - criterion.bound
        if margin < -wide or (u == 0 and margin <= 0):
            return "fails", None
        if margin <= wide:
            return "inconclusive", _seeds(seeds, wide, abs(margin))
        return _with_power(check, seeds, "holds")
    if abs(m - check.predicted) > criterion.tolerance + wide:
        return "fails", None
    if check.printed is not None and abs(m - check.printed) <= max(wide, criterion.tolerance):
        return "inconclusive", _seeds(seeds, 2 * wide, abs(check.predicted - check.printed))
    if wide > criterion.resolution:
        return "inconclusive", _seeds(seeds, wide, criterion.resolution)
    return _with_power(check, seeds, "holds" if check.printed is None else "corrected")


def power(check: Check, seeds: int) -> float | None:
    """Return the probability that the check does not hold if its alternative is true; None without an alternative.

    The measurement is then taken for Gaussian around the alternative, with the standard error that was measured. A
    test at a level has no such formula; its alternative is the p-value itself, so the answer there is 0 or 1.
    """
    if check.alternative is None:
        return None
    if isinstance(check.criterion, AtLevel):
        return float(check.alternative < check.criterion.level)
    wide, u, away = _width(check, seeds), check.uncertainty, check.alternative - check.predicted
    beyond = lambda distance: float(special.ndtr(distance / u)) if u > 0 else float(distance > 0)
    if isinstance(check.criterion, Within):
        far = check.criterion.tolerance + wide
        return min(1.0, beyond(abs(away) - far) + beyond(-abs(away) - far))
    excess = check.alternative - check.criterion.bound
    excess = excess if isinstance(check.criterion, Below) else -excess
    return beyond(excess + wide) if u > 0 else float(excess >= 0)


def _width(check: Check, seeds: int) -> float:
    """c u: four standard errors of many samples, the t quantile of the same probability for few."""
    if check.uncertainty == 0:
        return 0.0
    samples = seeds if check.samples is None else check.samples
    return t_quantile(float(special.ndtr(SIGMAS)), samples) * check.uncertainty


def _with_power(check: Check, seeds: int, verdict: Verdict) -> tuple[Verdict, int | None]:
    """The verdict, unless the stated alternative would have passed as well."""
    chance = power(check, seeds)
    if chance is None or chance >= POWER:
        return verdict, None
    assert check.alternative is not None
    margin = check.criterion.tolerance if isinstance(check.criterion, Within) else 0.0
    gap = abs(check.alternative - check.predicted) - margin
    return "inconclusive", _seeds(seeds, 2 * _width(check, seeds), max(gap, 0.0))


def _seeds(seeds: int, width: float, wanted: float) -> int:
    """Standard errors fall like 1/sqrt(seeds); 2^31 stands for more than anybody will run."""
    needed = seeds * (width / wanted) ** 2 if wanted > width * 1e-12 else math.inf
    return math.ceil(min(needed, 2**31))
