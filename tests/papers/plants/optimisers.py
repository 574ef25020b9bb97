"""Alternatives of the claims on the averaged flow and on optimisers."""

from dataclasses import replace
from typing import Any

from tests.papers.plants import Plant, replaced
from undertow.noise.label import LabelNoise
from undertow.optimisers import SGD

HERE = "undertow.papers.optimisers.claims"


def _closure(rival: str) -> Any:
    """Solve the averaged flow with the equation for X that the alternative states."""

    def wrap(right: Any) -> Any:
        def run(*args: Any, closure: str = "averaged_noise", **settings: Any) -> Any:
            return right(*args, closure=rival if closure == "averaged_noise" else closure, **settings)

        return run

    return wrap


def _stronger_labels(right: Any) -> Any:
    """Give the averaged flow label noise of twice the variance."""
    return lambda noise, *args, **settings: right(LabelNoise(noise.problem, 2**0.5 * noise.strength), *args, **settings)


def _time_for_slow_time(right: Any) -> Any:
    """Read the sum of the step sizes where the claim reads the sum of their squares."""

    def run(*args: Any, **settings: Any) -> Any:
        plain = right(*args, **settings)
        return replace(plain, slow_time=plain.time)

    return run


PLANTS: dict[str, Plant] = {
    "averaged-flow-trace": replaced(f"{HERE}.network.average", _closure("small_step")),
    "excess-loss": replaced(f"{HERE}.network.predicted_mean", lambda right: lambda flow, name: flow.observed[name]),
    "batch-curvatures": replaced(f"{HERE}.curvatures.average", _closure("finite_step")),
    "averaged-flow-order": replaced(f"{HERE}.order.average", _closure("small_step")),
    "averaged-flow-limit": replaced(f"{HERE}.limit.average", _stronger_labels),
    "averaged-flow-noisy-data": replaced(f"{HERE}.noisy_data.average", _closure("small_step")),
    "adam-weak-order": replaced(
        "undertow.dynamics.diffuse.EulerStep._relaxed", lambda right: lambda self, params, state: state
    ),
    "square-root-scaling": replaced(
        f"{HERE}.scaling.square_root", lambda right: lambda step_size, factor: step_size * factor
    ),
    "momentum-effective-step": replaced(
        f"{HERE}.momentum.effective_step", lambda right: lambda step_size, beta: step_size
    ),
    "adamw-rotation": replaced(
        f"{HERE}.rotation.predicted_angle", lambda right: lambda step_size, decay, b1: (2 * step_size * decay) ** 0.5
    ),
    "schedules-are-clocks": replaced(f"{HERE}.schedules.descend", _time_for_slow_time),
    "adam-factorisation": replaced(f"{HERE}.sensing.Adam", lambda right: lambda **settings: SGD()),
}
