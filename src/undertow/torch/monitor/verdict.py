"""Whether the symmetries of a network have reached the equilibrium of its optimiser, from the rows of a monitor."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from undertow import _validate as validate
from undertow.torch.monitor.reading import Row

__all__ = ["TOLERANCE", "Verdict", "verdicts"]

TOLERANCE = 0.1
"""Largest root mean square of the amounts that counts as reached: factors of the weights within about 10 %."""
RECENT = 5
"""Measurements whose median distance counts."""
REGIME_LIMIT = 1.0
"""Largest (1 - b2)/(eta lambda) of the theory, as in `undertow.AdamW.regime`."""
PATIENCE = 3.0
"""Relaxation times after which a distance must have fallen; exp(-3) of it would be left."""


@dataclass(frozen=True)
class Verdict:
    """Whether one symmetry is at its equilibrium. `NoiseMonitor.verdicts` returns one for each symmetry.

    >>> from undertow.torch.monitor.verdict import verdicts
    >>> row = {"step": 0, "symmetry": "QK", "optimiser": "SGD", "distance": 0.05, "relaxation": 1000.0, "note": ""}
    >>> verdict = verdicts([row])[0]
    >>> print(verdict.state, "|", verdict.text)
    reached | at SGD's equilibrium: the distance is 0.05
    """

    symmetry: str
    """Name of the symmetry."""
    state: str
    """"reached", "moving" (not reached, and nothing is wrong so far), "stalled" (the distance does not fall as
    predicted), "none" (no generator has a finite equilibrium) or "unknown"."""
    text: str
    """The same as a sentence, with the reason."""
    distance: float | None
    """Median of the newest distances, the root mean square of the amounts to the equilibrium."""
    steps_left: float | None
    """Steps that the theory expects until the distance is below the tolerance, at the present step size; None where
    the state is not "moving"."""
    regime: float | None = None
    """(1 - b2)/(eta lambda) of AdamW, with lambda the curvature in its metric; None where it was not measured."""

    def __str__(self) -> str:
        return f"{self.symmetry}: {self.text}"


def verdicts(rows: Sequence[Row], tolerance: float = TOLERANCE) -> list[Verdict]:
    """Return a verdict for each symmetry, from all rows of a monitor in the order of the steps.

    >>> from undertow.torch.monitor.verdict import verdicts
    >>> row = {"step": 0, "symmetry": "QK", "optimiser": "AdamW", "distance": 0.5, "relaxation": 1000.0, "note": ""}
    >>> print(verdicts([row])[0])
    QK: not at AdamW's equilibrium: the distance is 0.5; theory expects about 1,600 steps
    """
    validate.finite_number("verdicts", "tolerance", tolerance)
    if tolerance == 0:
        raise ValueError("`verdicts(tolerance=0)`: a distance is never 0 under noise; give a number such as 0.1.")
    by_symmetry: dict[str, list[Row]] = {}
    for row in rows:
        by_symmetry.setdefault(str(row["symmetry"]), []).append(row)
    return [_with_regime(_verdict(name, own, tolerance), own[-1].get("regime")) for name, own in by_symmetry.items()]


def _with_regime(verdict: Verdict, regime: float | str | None) -> Verdict:
    """Return a verdict with the regime in its text."""
    if not isinstance(regime, float) or verdict.state in ("none", "unknown"):
        return verdict
    outside = "" if regime < REGIME_LIMIT else ": outside the theory"
    text = f"{verdict.text}; (1 - b2)/(eta lambda) = {regime:.2g}{outside}"
    return replace(verdict, text=text, regime=regime)


def _verdict(name: str, rows: list[Row], tolerance: float) -> Verdict:
    last = rows[-1]
    if last["distance"] is None:
        return Verdict(name, "unknown", f"not known: {last['note']}", None, None)
    known = [row for row in rows if row["distance"] is not None and row["optimiser"] == last["optimiser"]]
    distance = statistics.median(_number(row, "distance") for row in known[-RECENT:])
    owner = f"{last['optimiser']}'s equilibrium"
    if last["relaxation"] is None:
        return Verdict(name, "none", f"not known: {last['note']}", distance, None)
    if distance <= tolerance:
        return Verdict(name, "reached", f"at {owner}: the distance is {distance:.2g}", distance, None)
    time, start = _number(last, "relaxation"), _number(known[0], "distance")
    waited = (_number(last, "step") - _number(known[0], "step")) / time
    if waited > PATIENCE and distance > start / 2:
        text = f"not approaching {owner}: {distance:.2g} after {waited:.0f} relaxation times, where it was {start:.2g}"
        return Verdict(name, "stalled", text, distance, None)
    left = time * math.log(distance / tolerance)
    text = f"not at {owner}: the distance is {distance:.2g}; theory expects about {_rounded(left)} steps"
    return Verdict(name, "moving", text, distance, left)


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)


def _rounded(steps: float) -> str:
    """Return a number of steps with two digits."""
    digits = max(0, math.floor(math.log10(max(steps, 1.0))) - 1)
    return f"{round(steps / 10**digits) * 10**digits:,}"
