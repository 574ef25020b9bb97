"""The result of `check_noise`: one row per check, a table, and the error for a noise that fails."""

from dataclasses import dataclass
from typing import Literal

from undertow._table import ResultTable, number

__all__ = ["CheckRow", "NoiseCheck", "NoiseCheckError"]

Status = Literal["ok", "failed", "differs", "skipped"]


@dataclass(frozen=True)
class CheckRow:
    """One check of a noise. A comparison along several directions has the values of the direction that differs most.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise import NoiseCheckError
    >>> problem = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.array([[0.0, 1.0], [4.0, 1.0]]))
    >>> try:
    ...     ut.check_noise(ut.Additive(problem, factor=lambda w: jnp.ones((3, 1))), jnp.array([3.0, 2.0]))
    ... except NoiseCheckError as error:
    ...     for row in error.result.rows[:2]:
    ...         print(row.name, "|", row.status)
    check(params) | failed
    randomness: leading axis | skipped
    """

    name: str
    status: Status
    """`failed` raises; `differs` is a difference that the protocol allows; `skipped` is a check that was not made."""
    value: float | None = None
    expected: float | None = None
    z: float | None = None
    """The difference in standard errors, for a comparison with draws; None for an exact check."""
    remark: str = ""
    """The reason for a status other than `ok`, and what to do."""


@dataclass(frozen=True)
class NoiseCheck:
    """The result of `check_noise`; `print` shows it as a table.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.array([[0.0, 1.0], [4.0, 1.0]]))
    >>> result = ut.check_noise(ut.Isotropic(problem), jnp.array([3.0, 2.0]), draws=200)
    >>> print(result.noise, result.passed, result.failures, f"{len(result.rows)} rows, |z| < {result.limit:.2f}")
    Isotropic True () 25 rows, |z| < 4.44
    """

    noise: str
    """The name of the class of the noise."""
    rows: tuple[CheckRow, ...]
    draws: int
    """The number of draws that were compared with the mean and the covariance."""
    statistics: int
    """The number of z-scores in all rows together."""
    limit: float
    """The largest |z| of a noise that passes."""
    false_alarm: float
    """The bound on the probability that a correct noise fails."""

    @property
    def failures(self) -> tuple[CheckRow, ...]:
        """The rows that failed."""
        return tuple(row for row in self.rows if row.status == "failed")

    @property
    def passed(self) -> bool:
        """Whether no row failed."""
        return not self.failures

    def _table(self) -> ResultTable:
        head = f"{self.noise}: {self.draws} draws, {self.statistics} statistics"
        if self.statistics:
            head += f", |z| < {self.limit:.2f} (a correct noise fails with probability {self.false_alarm:g})"
        rows = tuple(
            (row.name, number(row.value), number(row.expected), _score(row.z), _result(row)) for row in self.rows
        )
        return ResultTable(head, ("check", "value", "expected", "z", "result"), rows, "lrrrl")

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()


class NoiseCheckError(ValueError):
    """Error for a noise that does not follow the protocol; `result` is the table of the checks.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise import NoiseCheckError
    >>> problem = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.array([[0.0, 1.0], [4.0, 1.0]]))
    >>> try:
    ...     ut.check_noise(ut.Additive(problem, factor=lambda w: jnp.ones((3, 1))), jnp.array([3.0, 2.0]))
    ... except NoiseCheckError as error:
    ...     print(error.result.failures[0].name, "|", error.result.failures[0].remark[:41])
    check(params) | it raised ValueError: `Additive`: `factor
    """

    def __init__(self, result: NoiseCheck):
        self.result = result
        parts = "; ".join(f"{row.name}: {row.remark}" for row in result.failures)
        count = f"{len(result.failures)} of {len(result.rows)} checks failed"
        super().__init__(f"`check_noise({result.noise})`: {count}: {parts}\n\n{result}")


def _score(z: float | None) -> str:
    return "" if z is None else f"{z:.2f}"


def _result(row: CheckRow) -> str:
    if row.status == "failed":
        return "FAILED"
    return f"{row.status}: {row.remark}" if row.remark else row.status
