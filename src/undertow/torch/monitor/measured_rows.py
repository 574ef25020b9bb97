"""Rows and noise scales of all measurements, some of which are computed later.

A processor that has just trained a step has none of the code of a measurement in its caches, and takes longer for a
small one. Small measurements are therefore computed several at a time, or when they are read.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from undertow.torch.monitor.curvature_scale import MetricCurvature, fill_regime
from undertow.torch.monitor.noise_scale import NoiseScales
from undertow.torch.monitor.reading import Reading, Row
from undertow.torch.monitor.step_result import StepResult

__all__ = ["MOST_WAITING", "MeasuredRows"]

MOST_WAITING = 8
"""Measurements that are computed at once."""
MOST_ROWS = 100_000
"""Largest number of rows held, about 100 MB."""


class _Waiting(NamedTuple):
    step: int
    result: StepResult
    uncovered: Mapping[str, str]
    curvature: MetricCurvature | None


class MeasuredRows:
    """The rows of the last `keep` measurements, and the noise scales; `last` holds the newest readings.

    With many symmetries there are fewer measurements: at most `MOST_ROWS` rows.
    """

    def __init__(self, keep: int, symmetries: int, noise_scale: NoiseScales):
        self._rows: deque[list[Row]] = deque(maxlen=min(keep, max(1, MOST_ROWS // max(1, symmetries))))
        self._waiting: list[_Waiting] = []
        self.noise_scale = noise_scale
        self.last: tuple[Reading, ...] = ()

    def __len__(self) -> int:
        return len(self._rows) + len(self._waiting)

    def __iter__(self) -> Iterator[list[Row]]:
        """Iterate over the measurements that are computed."""
        return iter(self._rows)

    def add(
        self, step: int, result: StepResult, uncovered: Mapping[str, str], curvature: MetricCurvature | None
    ) -> None:
        """Add the result of a step, with the parameters that are uncovered now and the curvature that is known now."""
        self._waiting.append(_Waiting(step, result, uncovered, curvature))

    @property
    def full(self) -> bool:
        """Whether the measurements that wait have to be computed."""
        return len(self._waiting) >= MOST_WAITING

    def complete(self) -> list[tuple[int, str]]:
        """Compute the measurements that wait; return the steps without rows, with the reasons."""
        waiting, self._waiting = self._waiting, []
        failed = []
        for step, result, uncovered, curvature in waiting:
            assert result.power is not None
            self.noise_scale.add(result.power, uncovered)
            try:
                self.last = result.readings()
            except Exception as error:
                failed.append((step, f"{type(error).__name__}: {error}"))
                continue
            rows = [reading.row for reading in self.last]
            if curvature is not None:
                fill_regime(rows, curvature)
            self._rows.append(rows)
        return failed
