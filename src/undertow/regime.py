"""The regime of a prediction: the small parameters that it rests on, and their values."""

import json
from dataclasses import asdict, dataclass

from undertow._table import ResultTable, number

__all__ = ["Regime", "SmallParameter"]


@dataclass(frozen=True)
class SmallParameter:
    """A number that a theory assumes to be small.

    >>> from undertow.regime import SmallParameter
    >>> SmallParameter("eta * lambda_max", 0.3, 2.0, "the step size over the time of the fastest direction").valid
    True
    """

    name: str
    """The parameter as a formula, such as `eta * lambda_max`."""
    value: float
    limit: float | None = None
    """The theory applies below this value; None where no value is known, and then the parameter is always valid."""
    meaning: str = ""
    """The parameter in words."""

    @property
    def valid(self) -> bool:
        """Whether the value is below the limit; a value that is NaN is not."""
        return self.limit is None or self.value < self.limit


@dataclass(frozen=True)
class Regime:
    """The conditions under which a prediction holds; `print` shows them as a table.

    >>> from undertow.regime import Regime, SmallParameter
    >>> regime = Regime((SmallParameter("eta * lambda_max", 0.3, 2.0, "stability of the steps"),
    ...                  SmallParameter("(1 - b2)/(eta lambda)", 2.0, 1.0, "memory of the preconditioner")),
    ...                 estimated_error=0.04)
    >>> print(regime)
    regime: outside the theory, estimated error 4%
    small parameter        value  limit  meaning
    eta * lambda_max         0.3      2  stability of the steps
    (1 - b2)/(eta lambda)      2      1  memory of the preconditioner  outside the theory
    >>> regime.valid
    False
    """

    parameters: tuple[SmallParameter, ...] = ()
    estimated_error: float | None = None
    """An estimate of the relative error of the prediction; None where there is none."""
    notes: tuple[str, ...] = ()
    """Further conditions, as sentences."""

    @property
    def valid(self) -> bool:
        """Whether every small parameter is below its limit."""
        return all(parameter.valid for parameter in self.parameters)

    def table(self) -> ResultTable:
        """Return the table that `print` shows."""
        title = f"regime: {'inside' if self.valid else 'outside'} the theory"
        if self.estimated_error is not None:
            title += f", estimated error {100 * self.estimated_error:.2g}%"
        rows = tuple(
            (p.name, number(p.value), number(p.limit), p.meaning, "" if p.valid else "outside the theory")
            for p in self.parameters
        )
        return ResultTable(title, ("small parameter", "value", "limit", "meaning", ""), rows, "lrrll", self.notes)

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()

    def to_json(self) -> str:
        """Return the record as JSON, which `from_json` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Regime":
        """Return the record that `to_json` wrote.

        >>> from undertow.regime import Regime, SmallParameter
        >>> regime = Regime((SmallParameter("eta", 0.1),), notes=("The step size is constant.",))
        >>> Regime.from_json(regime.to_json()) == regime
        True
        """
        data = json.loads(text)
        parameters = tuple(SmallParameter(**parameter) for parameter in data["parameters"])
        return Regime(parameters, data["estimated_error"], tuple(data["notes"]))
