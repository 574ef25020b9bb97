"""How a number is judged: one criterion for all scales, with the uncertainty of the measurement in it.

A measurement m with standard error u is compared with a prediction. Four standard errors are always granted (a false
alarm in 16,000 for a Gaussian), and where the data cannot decide, the verdict says how many seeds would.
"""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["SIGMAS", "Above", "AtLevel", "Below", "Check", "Criterion", "Verdict", "Within", "judge"]

SIGMAS = 4.0

Verdict = Literal["holds", "fails", "corrected", "inconclusive", "error"]


@dataclass(frozen=True)
class Within:
    """|measured - predicted| <= tolerance + 4 u, and u small enough to see a deviation of `resolution`."""

    tolerance: float
    resolution: float

    def __str__(self) -> str:
        return f"within {self.tolerance:g} + {SIGMAS:g} standard errors, able to see {self.resolution:g}"


@dataclass(frozen=True)
class Below:
    """measured < bound, by 4 u."""

    bound: float

    def __str__(self) -> str:
        return f"below {self.bound:g} by {SIGMAS:g} standard errors"


@dataclass(frozen=True)
class Above:
    """measured > bound, by 4 u."""

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
    """One number against its prediction. `printed` is the paper's value where the errata list says it is wrong."""

    what: str
    measured: float
    predicted: float
    uncertainty: float
    criterion: Criterion
    printed: float | None = None


def judge(check: Check, seeds: int) -> tuple[Verdict, int | None]:
    """The verdict on one check, and where it is inconclusive the number of seeds that would decide."""
    m, u, criterion = check.measured, check.uncertainty, check.criterion
    if not math.isfinite(m) or not math.isfinite(u) or u < 0:
        return "fails", None
    if isinstance(criterion, AtLevel):
        return ("holds" if m >= criterion.level else "fails"), None
    if isinstance(criterion, Below | Above):
        margin = criterion.bound - m if isinstance(criterion, Below) else m - criterion.bound
        if margin > SIGMAS * u:
            return "holds", None
        if margin < -SIGMAS * u or u == 0:
            return "fails", None
        return "inconclusive", _seeds(seeds, SIGMAS * u, abs(margin))
    if abs(m - check.predicted) > criterion.tolerance + SIGMAS * u:
        return "fails", None
    if check.printed is not None:
        if abs(m - check.printed) > max(SIGMAS * u, criterion.tolerance):
            return "corrected", None
        return "inconclusive", _seeds(seeds, 2 * SIGMAS * u, abs(check.predicted - check.printed))
    if SIGMAS * u > criterion.resolution:
        return "inconclusive", _seeds(seeds, SIGMAS * u, criterion.resolution)
    return "holds", None


def _seeds(seeds: int, width: float, wanted: float) -> int:
    """Standard errors fall like 1/sqrt(seeds); 2^31 stands for more than anybody will run."""
    needed = seeds * (width / wanted) ** 2 if wanted > width * 1e-12 else math.inf
    return math.ceil(min(needed, 2**31))
