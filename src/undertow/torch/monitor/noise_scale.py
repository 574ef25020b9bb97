"""The gradient noise scale: how large a batch has to be for its gradient to be more signal than noise.

A batch of N independent samples has the gradient G with mean g and covariance Sigma/N. The simple noise scale is
B = tr Sigma/|g|^2 (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, arXiv:1812.06162, equation
2.9). In a model of a quadratic loss with an isotropic Hessian, B is the batch size at which training takes twice the
least possible number of steps and twice the least possible number of samples.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from undertow._table import ResultTable, number, shortened
from undertow.torch.monitor.thinned import Thinned

__all__ = ["GradientPower", "NoiseScale", "NoiseScales", "gradient_power", "ratio_uncertainty"]

HISTORY = 1024
"""Largest number of earlier estimates held for figures."""


@dataclass(frozen=True)
class GradientPower:
    """Noise and signal of the gradient of one step, by parameter."""

    step: int
    samples: int
    noise: Mapping[str, float]
    """Trace of the covariance of the gradient of the step."""
    signal: Mapping[str, float]
    """Square of the norm of the expected gradient, estimated without bias; it may be negative."""


def gradient_power(step: int, samples: int, second: Mapping[str, float], square: Mapping[str, float]) -> GradientPower:
    """Return noise and signal of a step.

    With the contributions c_n of N samples to the gradient G = sum_n c_n, whatever the loss divides by, the unbiased
    estimates are N/(N-1) (sum_n |c_n|^2 - |G|^2/N) for tr Cov G, and |G|^2 minus this for |E G|^2.

    **Arguments:**

    - `second`: sum_n |c_n|^2 by parameter.
    - `square`: |G|^2 by parameter.

    >>> from undertow.torch.monitor.noise_scale import gradient_power
    >>> power = gradient_power(0, 2, {"w": 1.0**2 + 3.0**2}, {"w": (1.0 + 3.0) ** 2})
    >>> print(power.noise["w"], power.signal["w"])  # variance of a sample 2, of the sum of two 4
    4.0 12.0
    """
    noise = {
        name: max(0.0, (value - square[name] / samples) * samples / (samples - 1)) for name, value in second.items()
    }
    return GradientPower(step, samples, noise, {name: square[name] - noise[name] for name in noise})


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale B of some parameters, from the last measurements.

    >>> from undertow.torch.monitor.noise_scale import NoiseScale
    >>> scale = NoiseScale("layer", 30.0, 4.0, 24.0, 39.0, noise=0.3, signal=0.1, batch_size=10.0, measurements=20)
    >>> print(f"{scale.noise_share:.2f} {scale.more_steps:.1f} {scale.more_samples:.2f}")
    0.75 4.0 1.33
    """

    name: str
    value: float
    """B = N tr Cov G/|E G|^2, in samples; infinite where the estimate of |E G|^2 is not positive."""
    error: float
    """Standard error of `value` over the measurements, NaN for fewer than 3."""
    low: float
    """Lower end of a 95 % interval by Fieller's theorem, NaN for fewer than 3 measurements."""
    high: float
    """Upper end, infinite where the signal is not distinguishable from 0."""
    noise: float
    """tr Cov G, the mean over the measurements."""
    signal: float
    """|E G|^2, the mean over the measurements."""
    batch_size: float
    """Samples per step, the mean over the measurements."""
    measurements: int

    @property
    def resolved(self) -> bool:
        """Whether the interval is finite and narrower than a factor of 4."""
        return math.isfinite(self.high) and self.low > 0 and self.high < 4 * self.low

    @property
    def noise_share(self) -> float:
        """Share of E|G|^2 that is noise, 1/(1 + N/B)."""
        if self.value == math.inf:
            return 1.0
        return self.value / (self.value + self.batch_size) if self.value + self.batch_size > 0 else math.nan

    @property
    def signal_to_noise(self) -> float:
        """|E G| over the root of tr Cov G, sqrt(N/B)."""
        return math.sqrt(self.batch_size / self.value) if self.value > 0 else math.inf

    @property
    def critical_batch(self) -> float:
        """The batch size that B implies: above it larger batches save few steps."""
        return self.value

    @property
    def more_steps(self) -> float:
        """Steps to a loss relative to the least possible number, 1 + B/N in the model of McCandlish et al."""
        return 1 + self.value / self.batch_size

    @property
    def more_samples(self) -> float:
        """Samples to a loss relative to the least possible number, 1 + N/B in the same model."""
        return 1 + self.batch_size / self.value if self.value > 0 else math.inf


@dataclass(frozen=True)
class ScaleRecord:
    """Estimates after one measurement, by layer; the total has the name "total"."""

    step: int
    samples: int
    value: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    share: dict[str, float]


class NoiseScales:
    """Noise scales in total, by layer and by symmetry, smoothed over the last `window` measurements.

    Numerator and denominator are averaged separately over the measurements, because the ratio of single steps is
    biased. The scale of a symmetry is that of all parameters that the symmetry moves.

    >>> from undertow.torch.monitor.noise_scale import NoiseScales, gradient_power
    >>> scales = NoiseScales()
    >>> scales.add(gradient_power(0, 2, {"a.w": 10.0}, {"a.w": 16.0}), {})
    >>> print(round(scales.total.value, 3), list(scales.layers))  # 2 samples, noise 4, signal 12
    0.667 ['a']
    """

    def __init__(self, window: int = 50, symmetries: Mapping[str, Sequence[str]] | None = None):
        self.window = window
        self._symmetries = dict(symmetries or {})
        self._recent: deque[GradientPower] = deque(maxlen=window)
        self._columns: dict[str, int] = {}
        """Place of each parameter in the arrays of noise and signal."""
        self._names: deque[tuple[str, ...]] = deque(maxlen=window)
        """Parameters of each of the recent measurements."""
        self._values: deque[np.ndarray] = deque(maxlen=window)
        """(2, parameters): noise and signal of each of the recent measurements."""
        self.uncovered: dict[str, str] = {}
        """Parameters that no number here includes, with the reason."""
        self.history: Thinned[ScaleRecord] = Thinned(HISTORY)
        """Earlier estimates, at most a thousand of them, evenly spread over the run."""

    def add(self, power: GradientPower, uncovered: Mapping[str, str]) -> None:
        """Add a measurement. Parameters that are uncovered in one measurement are left out of all."""
        for name in power.noise:
            self._columns.setdefault(name, len(self._columns))
        values = np.zeros((2, len(self._columns)))
        places = [self._columns[name] for name in power.noise]
        values[:, places] = list(power.noise.values()), list(power.signal.values())
        names = tuple(power.noise)
        self._names.append(self._names[-1] if self._names and self._names[-1] == names else names)
        self._recent.append(power)
        self._values.append(values)
        self.uncovered |= uncovered
        estimates = self._of_groups({"total": self.covered, **self._layer_groups()})
        pick = lambda field: {name: getattr(scale, field) for name, scale in estimates.items()}
        self.history.append(
            ScaleRecord(power.step, power.samples, pick("value"), pick("low"), pick("high"), pick("noise_share"))
        )

    @property
    def newest_step(self) -> int:
        """The step of the newest measurement, -1 before the first."""
        return self._recent[-1].step if self._recent else -1

    @property
    def covered(self) -> list[str]:
        """Parameters that were measured."""
        different = {id(names): names for names in self._names}.values()
        names = dict.fromkeys(name for names in different for name in names)
        return [name for name in names if name not in self.uncovered]

    @property
    def total(self) -> NoiseScale:
        """The noise scale of all parameters that were measured."""
        return self.of("total", self.covered)

    @property
    def layers(self) -> dict[str, NoiseScale]:
        """Noise scales by module."""
        return self._of_groups(self._layer_groups())

    def _layer_groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self.covered:
            groups.setdefault(name.rpartition(".")[0] or "the model", []).append(name)
        return groups

    @property
    def symmetries(self) -> dict[str, NoiseScale]:
        """Noise scales by symmetry, each of all parameters that the symmetry moves."""
        covered = set(self.covered)
        groups = {key: [n for n in names if n in covered] for key, names in self._symmetries.items()}
        return self._of_groups({key: names for key, names in groups.items() if names})

    def of(self, name: str, parameters: Iterable[str]) -> NoiseScale:
        """Return the noise scale of some parameters."""
        return self._of_groups({name: list(parameters)})[name]

    def _of_groups(self, groups: Mapping[str, Sequence[str]]) -> dict[str, NoiseScale]:
        """Return the noise scale of each group of parameters."""
        count, width = len(self._values), len(self._columns)
        values = np.zeros((2, count, width + 1))  # the last column is that of unknown parameters
        if len({one.shape[1] for one in self._values}) == 1:
            values[:, :, : self._values[0].shape[1]] = np.array(self._values).swapaxes(0, 1)
        else:
            for place, one in enumerate(self._values):
                values[:, place, : one.shape[1]] = one
        columns = [[self._columns.get(name, width) for name in names] for names in groups.values()]
        noise, signal = np.stack([values[:, :, own].sum(2) for own in columns], 2) if groups else values[:, :, :0]
        samples = np.array([power.samples for power in self._recent], float)
        numerator = samples[:, None] * noise
        uncertainty = ratio_uncertainty(numerator, signal)
        mean = (lambda x: x.mean(0)) if count else (lambda x: np.full(x.shape[1:], math.nan))
        tops, noise, signal = mean(numerator).tolist(), mean(noise).tolist(), mean(signal).tolist()
        errors, lows, highs = (x.tolist() for x in uncertainty)
        ratios = [_ratio(top, bottom) for top, bottom in zip(tops, signal, strict=True)]
        size = float(mean(samples))
        columns_of = zip(groups, ratios, errors, lows, highs, noise, signal, strict=True)
        return {name: NoiseScale(name, *numbers, size, count) for name, *numbers in columns_of}

    def table(self) -> ResultTable:
        """Return total and layers as a table, or a sentence before the first measurement."""
        if not self._recent:
            return ResultTable("gradient noise scale: nothing was measured yet; train a step first")
        rows = [_cells(scale) for scale in (self.total, *self.layers.values())]
        kept, notes = shortened(rows, "layers: `monitor.noise_scale.layers`")
        missing = sorted(self.uncovered)
        if missing:
            notes += (f"not included: {', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}.",)
        header = ("parameters", "noise scale", "standard error", "95 % interval", "share of noise", "signal to noise")
        samples = number(self.total.batch_size)
        title = f"gradient noise scale over {len(self._recent)} measurements, {samples} samples per step"
        return ResultTable(title, header, kept, "lrrrrr", notes)

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _cells(scale: NoiseScale) -> tuple[str, ...]:
    return (
        scale.name,
        number(scale.value),
        number(scale.error),
        f"{number(scale.low)} to {number(scale.high)}",
        f"{scale.noise_share:.0%}",
        number(scale.signal_to_noise),
    )


def _ratio(numerator: float, denominator: float) -> float:
    if denominator > 0:
        return numerator / denominator
    return math.inf if numerator > 0 else math.nan


def ratio_uncertainty(numerator: np.ndarray, denominator: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the standard error of ratios of means by the delta method, and 95 % intervals by Fieller's theorem.

    Means are over the first axis; the results have the shape of the other axes.
    """
    count = len(numerator)
    if count < 3:
        nothing = np.full(numerator.shape[1:], math.nan)
        return nothing, nothing, nothing
    a, b = numerator.mean(0), denominator.mean(0)
    top, bottom = numerator - a, denominator - b
    v_aa, v_bb, v_ab = ((x * y).sum(0) / (count - 1) / count for x, y in ((top, top), (bottom, bottom), (top, bottom)))
    t = float(stdtrit(count - 1, 0.975))
    # (a - r b)^2 <= t^2 (v_aa - 2 r v_ab + r^2 v_bb), a quadratic in the ratio r
    square, linear, constant = b**2 - t**2 * v_bb, a * b - t**2 * v_ab, a**2 - t**2 * v_aa
    root = np.sqrt(np.maximum(0.0, linear**2 - square * constant))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(b > 0, np.sqrt(np.maximum(0.0, v_aa - 2 * a / b * v_ab + (a / b) ** 2 * v_bb)) / b, math.nan)
        bounded = (square > 0) & (b > 0)
        # where the denominator is not distinguishable from 0, the interval has no upper end
        open_low = np.where(linear + root > 0, np.maximum(0.0, constant / (linear + root)), 0.0)
        low = np.where(bounded, (linear - root) / square, open_low)
        high = np.where(bounded, (linear + root) / square, math.inf)
    return error, low, high
