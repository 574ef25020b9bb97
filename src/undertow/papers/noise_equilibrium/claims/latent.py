"""The alignment of the latent matrices W Sx W' and U'Se U of autoencoders, by noise or by fresh data."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.noise.base import AbstractNoise
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.autoencoder import ACTIVATIONS, AutoencoderLoss, latent_cosine
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, fan_in, loud_first
from undertow.trajectory import Trajectory
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOUD = 5.0
"""Variance of the label noise in the first coordinate; 1 in the others."""
LOOKS = 50
"""Number of observations of each run."""


@dataclass(frozen=True)
class Latent:
    """Two-layer autoencoders on y = x + eps, with Var eps_1 = 5 and variance 1 in the other coordinates."""

    seeds: int
    """Number of runs of SGD for each activation, each with its own start."""
    steps: int
    """Number of steps of SGD; averages are over the second half."""
    quiet_seeds: int
    """Number of runs of gradient descent, or of SGD with large batches, for each activation."""
    quiet_steps: int
    """Number of steps of these runs."""
    batch: int = 10
    """Samples per step of SGD."""
    samples: int = 1000
    """Number of samples of a fixed data set, and of a large batch."""
    step_size: float = 0.01
    """Step size of all runs."""
    width: int = 40
    """Number of inputs, of hidden units and of outputs."""


def orthogonal(n: int) -> float:
    """Return the cosine for W and U that are multiples of orthogonal n x n matrices: of I and diag(LOUD, 1, ..., 1).

    Fresh data lead nonlinear networks near such points without noise: for W = cO the best U is E[xh'] E[hh']^-1, a
    multiple of O' for units h with uncorrelated outputs (up to the direction of their mean). Noise leads a linear
    network to W Sigma_x W' = U'Sigma_eps U, up to a factor, where the cosine is 1.
    """
    return float((n - 1 + LOUD) / np.sqrt(n * (n - 1 + LOUD**2)))


class _Cosine(eqx.Module):
    """The cosine between the two latent matrices."""

    law: GaussianPairs

    def __call__(self, params: PyTree) -> Array:
        return latent_cosine(params, self.law)


@functools.cache
def _start(width: int) -> Callable[[Key[Array, ""]], dict[str, Array]]:
    """Return the initialiser, the same object for the same width, so that runs share their compiled program."""
    return lambda key: fan_in(key, inputs=width, hidden=width)


def _law(width: int) -> GaussianPairs:
    return GaussianPairs(jnp.ones(width, jnp.float32), loud_first(width, LOUD))


def _run(noise: AbstractNoise, parameters: Latent, quiet: bool, key: Array) -> Trajectory:
    steps = parameters.quiet_steps if quiet else parameters.steps
    seeds = parameters.quiet_seeds if quiet else parameters.seeds
    return descend(
        noise, _start(parameters.width), step_size=parameters.step_size, steps=steps, key=key,
        observe={"cosine": _Cosine(_law(parameters.width))}, every=max(1, steps // LOOKS), seeds=seeds,
        lane_width=seeds, progress=False,
    )  # fmt: skip


def _settled(run: Trajectory) -> tuple[float, float]:
    """Return the mean cosine over the second half of stationary runs, with its standard error over seeds."""
    late = run.observed["cosine"][:, len(run.step) // 2 :].mean(axis=1)
    return float(late.mean()), float(standard_error(late))


def _end(run: Trajectory) -> tuple[float, float]:
    """Return the mean cosine over seeds at the end, with its standard error."""
    last = run.observed["cosine"][:, -1]
    return float(last.mean()), float(standard_error(last))


def _measure(parameters: Latent, key: Key[Array, ""]) -> Measurement:
    law, rows, checks, diverged = _law(parameters.width), [], [], 0
    least = min(parameters.seeds, parameters.quiet_seeds)
    sets, runs = jax.random.split(key)
    for index, name in enumerate(ACTIVATIONS):
        population = law.population(AutoencoderLoss(name))
        k = jax.random.fold_in(runs, index)
        noisy = _run(Minibatch(population, parameters.batch), parameters, False, k)
        plain = _run(noiseless(population.sample(sets, parameters.samples)), parameters, True, k)
        sgd, descent = _settled(noisy), _end(plain)
        rows.append((sgd, descent))
        if name == "linear":
            checks.append(
                Check("linear: cosine of the latent matrices, SGD with fresh data", sgd[0], 1.0, sgd[1],
                      Within(0.05, 0.06), alternative=orthogonal(parameters.width))
            )  # fmt: skip
        else:
            # noise without effect gives the cosine of orthogonal weights; with full effect, the linear network's
            less, error = rows[0][0][0] - sgd[0], float(np.hypot(rows[0][0][1], sgd[1]))
            checks.append(
                Check(
                    f"cosine of the linear network minus that of the {name} network, SGD with fresh data",
                    less,
                    0.0,
                    error,
                    Above(0.02),
                    alternative=0.0,
                )
            )
        gain, error = sgd[0] - descent[0], float(np.hypot(sgd[1], descent[1]))
        checks.append(
            Check(f"{name}: cosine of SGD with fresh data minus that of gradient descent on fixed data", gain, 0.0,
                  error, Above(0.1), alternative=0.0, samples=least)
        )  # fmt: skip
        diverged += int(noisy.diverged.sum() + plain.diverged.sum())
        if name == "tanh":
            weak = _end(_run(Minibatch(population, parameters.samples), parameters, True, k))
            share = (weak[0] - descent[0]) / (sgd[0] - descent[0])
            spread = np.hypot(weak[1] + (1 - share) * descent[1], share * sgd[1]) / (sgd[0] - descent[0])
            checks.append(
                Check("tanh: share of this difference due to fresh data, with almost no noise", share, 1.0,
                      float(spread), Within(0.2, 0.3), printed=0.0, alternative=0.0, samples=least)
            )  # fmt: skip
    return _measurement(checks, rows, ("sgd", "descent"), parameters, diverged)


def _measure_control(parameters: Latent, key: Key[Array, ""]) -> Measurement:
    law, rows, checks, diverged = _law(parameters.width), [], [], 0
    sets, runs = jax.random.split(key)
    for index, name in enumerate(ACTIVATIONS):
        population = law.population(AutoencoderLoss(name))
        k = jax.random.fold_in(runs, index)
        large = _run(Minibatch(population, parameters.samples), parameters, True, k)
        again = _run(Minibatch(population.sample(sets, parameters.samples), parameters.batch), parameters, False, k)
        weak, fixed = _end(large), _end(again)
        checks += _linear(weak, fixed, parameters) if name == "linear" else _nonlinear(name, weak, fixed, parameters)
        rows.append((weak, fixed))
        diverged += int(large.diverged.sum() + again.diverged.sum())
    return _measurement(checks, rows, ("weak", "fixed"), parameters, diverged)


def _linear(weak: tuple[float, float], fixed: tuple[float, float], parameters: Latent) -> list[Check]:
    """Check that noise aligns the matrices of a linear network and fresh data without noise does not."""
    return [
        Check("linear: cosine of the latent matrices, noise and fixed data", fixed[0], 1.0, fixed[1], Above(0.75),
              alternative=weak[0]),
        Check("linear: cosine of the latent matrices, almost no noise and fresh data", weak[0], 0.0, weak[1],
              Below(0.6), alternative=orthogonal(parameters.width), samples=parameters.quiet_seeds),
    ]  # fmt: skip


def _nonlinear(name: str, weak: tuple[float, float], fixed: tuple[float, float], parameters: Latent) -> list[Check]:
    """Check that fresh data make W and U orthogonal without noise, and that noise has no effect on fixed data."""
    predicted = orthogonal(parameters.width)
    return [
        Check(f"{name}: cosine of the latent matrices, almost no noise and fresh data", weak[0], predicted, weak[1],
              Within(0.06, 0.1), alternative=1.0, samples=parameters.quiet_seeds),
        Check(f"{name}: cosine of the latent matrices, noise and fixed data", fixed[0], 0.0, fixed[1], Below(0.6),
              alternative=predicted),
    ]  # fmt: skip


def _measurement(
    checks: list[Check], rows: list, names: tuple[str, str], parameters: Latent, diverged: int
) -> Measurement:
    table = np.array(rows)  # (activation, kind, mean or error)
    data = xarray.Dataset(
        {name: (("activation", "part"), table[:, k]) for k, name in enumerate(names)},
        coords={"activation": list(ACTIVATIONS), "part": ["mean", "error"]},
    )
    return Measurement(tuple(checks), data, parameters.seeds, diverged)


def _bars(measurement: Measurement, labels: dict[str, tuple[str, str]]) -> "Figure":
    figure, (axes,) = style.new_figure(width=6.0)
    data = measurement.data
    places = np.arange(data.sizes["activation"])
    for shift, (name, (label, colour)) in zip((-0.08, 0.08), labels.items(), strict=True):
        style.points(axes, places + shift, data[name].sel(part="mean"), data[name].sel(part="error"), label, colour)
    style.theory(axes, [-0.4, places[-1] + 0.4], [1.0, 1.0], "noise equilibrium of a linear network")
    axes.set_xticks(places, list(data.activation.values))
    axes.set(xlabel="activation", ylabel="cosine of WΣₓW′ and U′ΣₑU", ylim=(0, 1.08))
    axes.legend()
    return figure


def _draw(measurement: Measurement, parameters: Latent) -> "Figure":
    return _bars(measurement, {"sgd": ("SGD, fresh data", "blue"), "descent": ("GD, fixed data", "red")})


def _draw_control(measurement: Measurement, parameters: Latent) -> "Figure":
    large = f"batches of {parameters.samples}, fresh data"
    return _bars(measurement, {"weak": (large, "green"), "fixed": (f"SGD, {parameters.samples} samples", "purple")})


CLAIMS = (
    Claim(
        id="latent-alignment",
        paper="noise_equilibrium",
        place="Figures 6 and 9",
        statement="SGD with fresh data aligns W Σ_x W' and U'Σ_ε U in nonlinear autoencoders too, but less than in "
        "linear ones; gradient descent on a fixed data set does not. The paper attributes the difference to the noise "
        "of SGD. In a tanh network nearly all of it is due to fresh data, without noise. The claim "
        "`latent-fresh-data` separates the two effects.",
        equation="W Σ_x W'/Tr Σ_x = U'Σ_ε U/Tr Σ_ε",
        alternative="Noise aligns the matrices in nonlinear networks as in linear ones, and fresh data have no effect.",
        scales={
            "smoke": Latent(8, 1500, 6, 500, samples=250),
            "default": Latent(8, 10_000, 8, 2000),
            "full": Latent(64, 10_000, 64, 10_000),
        },
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="latent-fresh-data",
        paper="noise_equilibrium",
        place="Figures 6 and 9, a control",
        statement="In a linear autoencoder noise aligns the two matrices, with fresh and with fixed data. In "
        "nonlinear ones fresh data make W and U orthogonal with almost no noise, and the cosine is that of orthogonal "
        "matrices; on a fixed data set SGD does not align them.",
        equation="W Σ_x W'/Tr Σ_x = U'Σ_ε U/Tr Σ_ε at the noise equilibrium;  the cosine is "
        "(n + 4)/√(n (n + 24)) for orthogonal W and U, n inputs",
        alternative="Fresh data without noise lead nonlinear networks to the noise equilibrium, where the cosine is "
        "1, and noise on fixed data aligns the matrices as much as fresh data do.",
        rests_on=("latent-alignment",),
        scales={
            "smoke": Latent(20, 1500, 12, 500, batch=5, samples=100, width=20),
            "default": Latent(8, 10_000, 12, 2000),
            "full": Latent(64, 10_000, 64, 4000),
        },
        measure=_measure_control,
        draw=_draw_control,
        accelerated=True,
    ),
)
