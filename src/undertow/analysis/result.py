"""The result of `undertow analyze`, for JAX problems and PyTorch models alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from undertow.symmetry.curvature import Spectrum
from undertow.symmetry.forecast import Forecast

__all__ = ["Analysis", "Path", "Row", "Sides", "in_steps"]

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]
"""Values of JSON."""


def in_steps(relaxation: float) -> str:
    """Return a finite relaxation time as a whole number of steps, at least one.

    >>> from undertow.analysis.result import in_steps
    >>> print(in_steps(0.2), "and", in_steps(1234.5))
    1 step and 1,234 steps
    """
    return "1 step" if relaxation < 1.5 else f"{relaxation:,.0f} steps"


@dataclass(frozen=True)
class Sides:
    """Noise and squared weights on both sides of a symmetry at one point: one number per generator.

    For a GL(d) they are the diagonals of its matrices in the eigenvectors of its flow at the given params.

    >>> from undertow.analysis.result import Sides
    >>> sides = Sides(noise_plus=(1.0,), noise_minus=(16.0,), weight_plus=(4.0,), weight_minus=(0.25,))
    >>> up, down = sides.pushes(step_size=0.1, weight_decay=0.1)
    >>> print(sides.charges, up, down)
    [1.875] [1.5] [24.]
    """

    noise_plus: tuple[float, ...]
    """The noise of one stochastic gradient that pushes the charge up."""
    noise_minus: tuple[float, ...]
    weight_plus: tuple[float, ...]
    weight_minus: tuple[float, ...]

    @property
    def charges(self) -> np.ndarray:
        """1/2 params'A params for each generator."""
        return (np.asarray(self.weight_plus) - np.asarray(self.weight_minus)) / 2

    def pushes(self, step_size: float, weight_decay: float) -> tuple[np.ndarray, np.ndarray]:
        """Return noise plus weight decay that push each charge up, and down; equal at the equilibrium."""
        decay_ratio = 2 * weight_decay / step_size
        up = np.asarray(self.noise_plus) + decay_ratio * np.asarray(self.weight_minus)
        return up, np.asarray(self.noise_minus) + decay_ratio * np.asarray(self.weight_plus)


@dataclass(frozen=True)
class Row:
    """One symmetry in numbers.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.analysis.jax import analyze
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> row = analyze(product, {"u": jnp.array(2.0), "w": jnp.array(0.5)}, batch_size=1).rows[0]
    >>> print(f"{row.name}: imbalance {row.imbalance:.2f}, relaxation in {row.relaxation:.0f} steps")
    rescaling, w against u: imbalance 0.88, relaxation in 2500 steps
    """

    name: str
    generators: int
    charge: float
    """The norm of the charges now: the root of the sum of their squares."""
    charge_at_equilibrium: float
    imbalance: float
    """|noise on the plus side - noise on the minus side| over their sum: 0 is balanced, 1 one-sided."""
    moved: float
    """The largest factor by which a weight changes on the way to equilibrium; infinite without one."""
    relaxation: float
    """The median of the finite relaxation times in steps; infinite where there is none."""
    slowest: float
    """The largest finite relaxation time in steps."""
    error: float
    """The largest standard error of the flow, relative to the flow; 0 where the data set is finite."""
    dead: int
    """Generators without a gradient on the data."""
    infinite: int
    """Directions without a finite equilibrium."""
    route: str
    """How the noise was computed."""
    now: Sides
    then: Sides
    """The sides at equilibrium. Generators without a finite equilibrium are not moved."""


@dataclass(frozen=True)
class Path:
    """The predicted path of a model after zero loss, by the limiting flow of label noise."""

    noise: str
    """The noise, in words."""
    slow_time: tuple[float, ...]
    trace: tuple[float, ...]
    """Tr H at these times."""

    def steps(self, step_size: float) -> np.ndarray:
        """Return the times in steps of SGD: slow_time = steps * step_size^2."""
        return np.asarray(self.slow_time) / step_size**2


@dataclass(frozen=True)
class Analysis:
    """The result of `analyze`, of a JAX problem or a PyTorch model; `sentences` give advice.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.analysis.jax import analyze
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> analysis = analyze(product, {"u": jnp.array(2.0), "w": jnp.array(0.5)}, batch_size=1)
    >>> print(analysis.sentences[1])
    At equilibrium Tr H falls from 8.5 to 4; the largest stable step of gradient descent goes from 0.235 to 0.5.
    """

    parameters: int
    loss: float
    step_size: float
    weight_decay: float
    rows: tuple[Row, ...]
    symmetries: tuple[object, ...]
    forecast: Forecast | None
    sharpness: tuple[float, float]
    """Tr H and its standard error, now; 0 where the whole Hessian was computed."""
    sharpness_then: tuple[float, float] | None
    """The same at equilibrium."""
    largest_step: float
    largest_step_then: float | None
    spectrum: Spectrum | None = None
    """The spectrum of the Hessian now; None for PyTorch models of more than 1,000 parameters."""
    spectrum_then: Spectrum | None = None
    """The same at equilibrium."""
    path: Path | None = None
    """The predicted path after zero loss; None where `limit` says why there is none."""
    limit: str = ""
    """What is known of the slow motion after zero loss, in a sentence."""
    sentences: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Plain]:
        """Return the whole result as plain values; numbers that are not finite are None.

        The params at equilibrium are left out: `undertow analyze` writes them to equilibrium.npz.
        """
        objects = ("symmetries", "forecast", "rows")
        names = [f.name for f in fields(self) if f.name not in objects]
        own = {name: getattr(self, name) for name in names}
        records = {name: None if own[name] is None else asdict(own[name]) for name in _RECORDS}
        whole = own | records | {"rows": [_row_json(row) for row in self.rows]}
        return {name: _plain(value) for name, value in whole.items()}


_RECORDS = ("spectrum", "spectrum_then", "path")


def _row_json(row: Row) -> dict[str, object]:
    """Return a row with the charge of every generator beside the noise and the weights."""
    sides = {name: asdict(side) | {"charges": side.charges} for name, side in (("now", row.now), ("then", row.then))}
    return asdict(row) | sides


def _plain(value: object) -> Plain:
    """Return records, arrays and numbers as values of JSON."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    assert value is None or isinstance(value, str | int)
    return value
