"""Two linear layers on anisotropic data: the norms and the sharpness at the end of SGD, for several settings."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jax.typing import DTypeLike
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.linear_nets import (
    GaussianPairs,
    fan_in,
    hessian_trace,
    split_variance,
    two_layer_loss,
)
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHIS = (0.2, 0.4, 1.0, 1.8)
"""Half of the inputs have this variance, the others 2 - phi."""
LOOK = 50
"""Steps between two observations."""


@dataclass(frozen=True)
class Online:
    """A two-layer linear network on fresh data y = x + eps with unit noise and inputs of two variances."""

    seeds: int
    """Number of runs at each setting, each with its own start."""
    steps: int
    """Number of steps of SGD; averages are over the last third."""
    inputs: int = 20
    """Number of inputs and of outputs."""
    hidden: int = 40
    """Number of hidden units."""
    batch: int = 5
    """Samples per step."""
    step_size: float = 0.01
    """Step size of SGD and of gradient descent."""
    weight_decay: float = 0.01
    """The paper's γ of gradient descent; `weight_decay` is 2γ."""
    descent_steps: int = 30_000
    """Number of steps of gradient descent with weight decay."""


PAPER = Online(8, 240_000, inputs=100, hidden=2000, batch=100, descent_steps=60_000)
"""The sizes of the paper. With its step size, 0.1, runs from this start diverge."""


class _End(NamedTuple):
    """Means over seeds with standard errors: |U|^2/|W|^2 and Tr H/(4 n^2)."""

    ratio: tuple[float, float]
    sharpness: tuple[float, float]
    diverged: int


def ratio_theory(phi: float) -> float:
    """Return |U|^2/|W|^2 at the equilibrium of the minimum: |U|^2 = Tr Sx^1/2, |W|^2 = Tr Sx^-1/2 (Tr Sx = n)."""
    return float(np.sqrt(phi * (2 - phi)))


def _unless_isotropic(phi: float, ratio: float) -> float | None:
    """Return a ratio of norms over that of the theory; None on isotropic data, where the alternative agrees."""
    return None if phi == 1 else float(ratio / ratio_theory(phi))


def sharpness_theory(phi: float) -> float:
    """Return Tr H/(4 n^2) there: Tr H = 2 (n Tr[W Sx W'] + |U|^2 Tr Sx), and both traces are n times this number."""
    return float((np.sqrt(phi) + np.sqrt(2 - phi)) / 2)


class _Observables(eqx.Module):
    """The observables |U|^2/|W|^2 and Tr H/(4 n^2)."""

    input_variance: Array

    def __call__(self, params: PyTree) -> dict[str, Array]:
        ratio = jnp.sum(params["U"] ** 2) / jnp.sum(params["W"] ** 2)
        return {
            "ratio": ratio,
            "sharpness": hessian_trace(params, self.input_variance) / (4 * params["U"].shape[0] ** 2),
        }


@functools.cache
def _start(inputs: int, hidden: int, dtype: DTypeLike) -> Callable[[Key[Array, ""]], dict[str, Array]]:
    """Return the initialiser, the same object for the same sizes, so that runs share their compiled program."""
    return lambda key: fan_in(key, inputs=inputs, hidden=hidden, dtype=dtype)


def _run(parameters: Online, phi: float, key: Key[Array, ""], descent: bool = False) -> _End:
    n = parameters.inputs
    # weight decay changes a charge by 1e-4 per step: in single precision it stops before the norms are equal
    dtype = jnp.float64 if descent else jnp.float32
    law = GaussianPairs(split_variance(n, phi, dtype), jnp.ones(n, dtype))
    steps = parameters.descent_steps if descent else parameters.steps
    run = descend(
        noiseless(law.mean_problem(two_layer_loss))
        if descent
        else Minibatch(law.population(two_layer_loss), parameters.batch),
        _start(n, parameters.hidden, dtype),
        step_size=parameters.step_size,
        weight_decay=2 * parameters.weight_decay if descent else 0.0,
        steps=steps,
        key=key,
        observe={"end": _Observables(law.input_variance)},
        every=LOOK,
        seeds=parameters.seeds,
        lane_width=parameters.seeds,
        progress=False,
    )
    late = run.step > 2 * steps / 3
    last = {name: values[:, late].mean(axis=1) for name, values in run.observed["end"].items()}
    summary = {name: (float(v.mean()), float(standard_error(v))) for name, v in last.items()}
    return _End(summary["ratio"], summary["sharpness"], int(run.diverged.sum()))


def _measure(parameters: Online, key: Key[Array, ""]) -> Measurement:
    keys = jax.random.split(key, 2 * len(PHIS))
    noisy = [_run(parameters, phi, k) for phi, k in zip(PHIS, keys, strict=False)]
    decayed = [_run(parameters, phi, k, descent=True) for phi, k in zip(PHIS, keys[len(PHIS) :], strict=True)]
    sharp = [
        (end.sharpness[0] / sharpness_theory(phi), end.sharpness[1] / sharpness_theory(phi))
        for phi, end in zip(PHIS, noisy, strict=True)
    ]
    low, high = min(sharp), max(sharp)
    checks = (
        *(
            Check(f"(|U|²/|W|²) / √(φ(2 - φ)) at φ = {phi:g}", end.ratio[0] / ratio_theory(phi), 1.0,
                  end.ratio[1] / ratio_theory(phi), Within(0.06, 0.06), alternative=_unless_isotropic(phi, 1.0))
            for phi, end in zip(PHIS, noisy, strict=True)
        ),
        Check("least Tr H / theory over φ", low[0], 1.0, low[1], Above(0.90)),
        # with equal norms all singular values are 1 and Tr H is 4 n^2
        Check("largest Tr H / theory over φ", high[0], 1.0, high[1], Below(1.04),
              alternative=max(1 / sharpness_theory(phi) for phi in PHIS)),
        *(
            Check(f"gradient descent with weight decay: |U|²/|W|² at φ = {phi:g}", end.ratio[0], 1.0, end.ratio[1],
                  Within(2e-3, 0.01), alternative=_unless_isotropic(phi, ratio_theory(phi) ** 2))
            for phi, end in zip(PHIS, decayed, strict=True)
        ),
    )  # fmt: skip
    table = lambda ends, name: (("phi", "part"), np.array([getattr(end, name) for end in ends]))
    data = xarray.Dataset(
        {
            "ratio": table(noisy, "ratio"),
            "sharpness": table(noisy, "sharpness"),
            "decayed": table(decayed, "ratio"),
        },
        coords={"phi": np.array(PHIS), "part": ["mean", "error"]},
    )
    return Measurement(checks, data, parameters.seeds, sum(end.diverged for end in (*noisy, *decayed)))


def _variants(base: Online) -> dict[str, Online]:
    """Return the settings, each with one change."""
    fewer = max(1, round(0.6 * base.batch))
    return {
        "step size × 1.5": replace(base, step_size=1.5 * base.step_size),
        "step size / 1.5": replace(base, step_size=base.step_size / 1.5),
        "batch × 2": replace(base, batch=2 * base.batch),
        f"batch {fewer} instead of {base.batch}": replace(base, batch=fewer),
        "half as wide": replace(base, inputs=base.inputs // 2, hidden=base.hidden // 2),
    }


def _measure_settings(parameters: Online, key: Key[Array, ""]) -> Measurement:
    variants = _variants(parameters)
    ends = [_run(v, PHIS[0], jax.random.fold_in(key, k)) for k, v in enumerate(variants.values())]
    theory = ratio_theory(PHIS[0])
    checks = tuple(
        Check(f"(|U|²/|W|²) / theory, {name}", end.ratio[0] / theory, 1.0, end.ratio[1] / theory, Within(0.06, 0.06),
              alternative=1 / theory)
        for name, end in zip(variants, ends, strict=True)
    )  # fmt: skip
    data = xarray.Dataset(
        {"ratio": (("setting", "part"), np.array([end.ratio for end in ends]))},
        coords={"setting": list(variants), "part": ["mean", "error"]},
    )
    return Measurement(checks, data, parameters.seeds, sum(end.diverged for end in ends))


def _draw(measurement: Measurement, parameters: Online) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    grid = np.linspace(0.05, 1.95, 100)
    style.theory(left, grid, [ratio_theory(phi) for phi in grid], "√(φ(2 − φ))")
    for name, label, colour in (("ratio", "SGD", "blue"), ("decayed", "GD with weight decay", "red")):
        style.points(left, data.phi, data[name].sel(part="mean"), data[name].sel(part="error"), label, colour)
    left.set(xlabel="variance φ of half of the inputs", ylabel="|U|²/|W|²")
    left.legend()
    style.theory(right, grid, [sharpness_theory(phi) for phi in grid], "(√φ + √(2 − φ))/2")
    style.points(right, data.phi, data.sharpness.sel(part="mean"), data.sharpness.sel(part="error"), "SGD")
    right.set(xlabel="variance φ of half of the inputs", ylabel="Tr H/(4n²)")
    right.legend()
    return figure


def _draw_settings(measurement: Measurement, parameters: Online) -> "Figure":
    figure, (axes,) = style.new_figure(width=6.4)
    data = measurement.data
    places = np.arange(data.sizes["setting"])
    style.theory(axes, [-0.5, places[-1] + 0.5], [ratio_theory(PHIS[0])] * 2, f"√(φ(2 − φ)), φ = {PHIS[0]:g}")
    style.points(axes, places, data.ratio.sel(part="mean"), data.ratio.sel(part="error"), "SGD")
    axes.set_xticks(places, [str(s) for s in data.setting.values], rotation=20, ha="right")
    axes.set(xlabel="change of the settings", ylabel="|U|²/|W|²", ylim=(0.5, 0.7))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="norm-ratio",
        paper="noise_equilibrium",
        place="Figure 3",
        statement="SGD balances the norms of the layers of a linear network only on isotropic data: |U|²/|W|² = √(φ "
        "(2 - φ)) for inputs of variances φ and 2 - φ, and the sharpness follows from it. Gradient descent with "
        "weight decay always ends with equal norms.",
        equation="|U|²/|W|² = √(φ (2 - φ)),  Tr H/(4 n²) = (√φ + √(2 - φ))/2",
        alternative="SGD ends with equal norms on anisotropic data too, as gradient descent with weight decay does.",
        controls=True,
        scales={
            "smoke": Online(10, 8000, 12, 24, step_size=0.015, weight_decay=0.04, descent_steps=5000),
            "default": Online(16, 30_000),
            "full": replace(PAPER, steps=120_000),
        },
        measure=_measure,
        draw=_draw,
        accelerated=True,
        long=True,
    ),
    Claim(
        id="norm-ratio-settings",
        paper="noise_equilibrium",
        place="Figure 8",
        statement="Step size, batch size and width change the ratio of the norms at the end of SGD by only a few per "
        "cent, and less for a smaller ratio of step size to batch size.",
        equation="|U|²/|W|² = √(φ (2 - φ)) at φ = 0.2",
        alternative="At these settings SGD ends with equal norms, as gradient descent with weight decay does.",
        rests_on=("norm-ratio",),
        scales={"smoke": Online(12, 10_000, 12, 24, step_size=0.015), "default": Online(16, 60_000), "full": PAPER},
        measure=_measure_settings,
        draw=_draw_settings,
        accelerated=True,
        long=True,
    ),
)
