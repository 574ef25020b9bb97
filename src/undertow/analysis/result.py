"""The result of `undertow analyze`, for JAX problems and PyTorch models alike."""

from dataclasses import dataclass, field

from undertow.symmetry.forecast import Forecast

__all__ = ["Analysis", "Row"]


@dataclass(frozen=True)
class Row:
    """One symmetry in numbers."""

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
    """The median relaxation time of the charges in steps: the distance to equilibrium falls by a factor e."""
    slowest: float
    """The largest relaxation time in steps."""
    error: float
    """The largest standard error of the flow, relative to the flow; 0 where the data set is finite."""
    dead: int
    """Generators without a gradient on the data."""
    infinite: int
    """Directions without a finite equilibrium."""
    route: str
    """How the noise was computed."""


@dataclass(frozen=True)
class Analysis:
    """The result of `analyze`, of a JAX problem or a PyTorch model; `sentences` give advice."""

    parameters: int
    loss: float
    step_size: float
    weight_decay: float
    rows: tuple[Row, ...]
    symmetries: tuple[object, ...]
    forecast: Forecast | None
    sharpness: tuple[float, float]
    """Tr H and its standard error, now."""
    sharpness_then: tuple[float, float] | None
    """The same at equilibrium."""
    largest_step: float
    largest_step_then: float | None
    drift: float | None
    """|dY/dt| under unit label noise, where the model is a regression at zero loss; else None."""
    sentences: tuple[str, ...] = field(default=())
