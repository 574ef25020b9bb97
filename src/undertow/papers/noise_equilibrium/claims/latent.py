"""Latent representations: when W Sx W' and U'Se U look alike, and whether noise or fresh data makes them so."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.autoencoder import ACTIVATIONS, AutoencoderLoss, latent_cosine
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, fan_in, loud_first
from undertow.trajectory import Trajectory
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOUD = 5.0
"""Variance of the label noise in the first coordinate; 1 in the others."""
LOOKS = 50


@dataclass(frozen=True)
class Latent:
    """Two-layer autoencoders on y = x + eps, Var eps_1 = 5 and else 1."""

    seeds: int
    """Runs of SGD for each activation, each with its own start."""
    steps: int
    """Steps of SGD; the second half is averaged over."""
    quiet_seeds: int
    """Runs of gradient descent, or of SGD with large batches, for each activation."""
    quiet_steps: int
    """Steps of those."""
    batch: int = 10
    """Samples per step of SGD."""
    samples: int = 1000
    """Samples of a fixed data set, and of a large batch."""
    step_size: float = 0.01
    """Of all."""
    width: int = 40
    """Inputs, hidden units and outputs."""


def orthogonal(n: int) -> float:
    """The cosine where W and U are multiples of orthogonal n x n matrices: of I and diag(LOUD, 1, ..., 1).

    Fresh data lead nonlinear nets near such points without noise: for W = cO the best U is E[xh'] E[hh']^-1, a multiple
    of O' for units h with uncorrelated outputs (up to one direction, that of their mean). Noise leads a linear net to
    W Sigma_x W' = U'Sigma_eps U, up to a factor, where the cosine is 1.
    """
    return float((n - 1 + LOUD) / np.sqrt(n * (n - 1 + LOUD**2)))


class _Cosine(eqx.Module):
    """The cosine between the two latent matrices."""

    law: GaussianPairs

    def __call__(self, params: Any) -> Array:
        return latent_cosine(params, self.law)


@functools.cache
def _start(width: int) -> Any:
    """The same function for the same width, so that runs share their compilation."""
    return lambda key: fan_in(key, inputs=width, hidden=width)


def _law(width: int) -> GaussianPairs:
    return GaussianPairs(jnp.ones(width, jnp.float32), loud_first(width, LOUD))


def _run(noise: Any, parameters: Latent, quiet: bool, key: Array) -> Trajectory:
    steps = parameters.quiet_steps if quiet else parameters.steps
    seeds = parameters.quiet_seeds if quiet else parameters.seeds
    return descend(
        noise, _start(parameters.width), step_size=parameters.step_size, steps=steps, key=key,
        observe={"cosine": _Cosine(_law(parameters.width))}, every=max(1, steps // LOOKS), seeds=seeds,
        lane_width=seeds, progress=False,
    )  # fmt: skip


def _settled(run: Trajectory) -> tuple[float, float]:
    """The mean cosine over the second half of stationary runs, with its standard error over seeds."""
    late = run.observed["cosine"][:, len(run.step) // 2 :].mean(axis=1)
    return statistics.mean(late)


def _end(run: Trajectory) -> tuple[float, float]:
    """The mean cosine over seeds at the end, with its standard error."""
    last = run.observed["cosine"][:, -1]
    return statistics.mean(last)


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
                Check("linear: cosine, SGD with fresh data", sgd[0], 1.0, sgd[1], Within(0.05, 0.06),
                      alternative=orthogonal(parameters.width))
            )  # fmt: skip
        else:
            # where noise does nothing it is that of orthogonal weights; where it does all, the linear net's
            less, error = rows[0][0][0] - sgd[0], float(np.hypot(rows[0][0][1], sgd[1]))
            checks.append(Check(f"{name}: that less this net's", less, 0.0, error, Above(0.02), alternative=0.0))
        gain, error = sgd[0] - descent[0], float(np.hypot(sgd[1], descent[1]))
        checks.append(
            Check(f"{name}: SGD's with fresh data less gradient descent's on fixed data", gain, 0.0, error, Above(0.1),
                  alternative=0.0, samples=least)
        )  # fmt: skip
        diverged += int(noisy.diverged.sum() + plain.diverged.sum())
        if name == "tanh":
            weak = _end(_run(Minibatch(population, parameters.samples), parameters, True, k))
            share = (weak[0] - descent[0]) / (sgd[0] - descent[0])
            spread = np.hypot(weak[1] + (1 - share) * descent[1], share * sgd[1]) / (sgd[0] - descent[0])
            checks.append(
                Check("tanh: share of this difference that fresh data make, with hardly any noise", share, 1.0,
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
    """Noise makes the matrices alike, and nothing else does: the one check has it, the other has fresh data."""
    return [
        Check("linear: cosine, noise but fixed data", fixed[0], 1.0, fixed[1], Above(0.75), alternative=weak[0]),
        Check("linear: cosine, hardly any noise but fresh data", weak[0], 0.0, weak[1], Below(0.6),
              alternative=orthogonal(parameters.width), samples=parameters.quiet_seeds),
    ]  # fmt: skip


def _nonlinear(name: str, weak: tuple[float, float], fixed: tuple[float, float], parameters: Latent) -> list[Check]:
    """Fresh data make W and U orthogonal without noise, which is short of alike; with fixed data noise does nothing."""
    told = orthogonal(parameters.width)
    return [
        Check(f"{name}: cosine, hardly any noise but fresh data", weak[0], told, weak[1], Within(0.06, 0.1),
              alternative=1.0, samples=parameters.quiet_seeds),
        Check(f"{name}: cosine, noise but fixed data", fixed[0], 0.0, fixed[1], Below(0.6), alternative=told),
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


def _bars(measurement: Measurement, labels: dict[str, tuple[str, str]]) -> Any:
    figure, (axes,) = style.new_figure(width=6.0)
    data = measurement.data
    places = np.arange(data.sizes["activation"])
    for shift, (name, (label, colour)) in zip((-0.08, 0.08), labels.items(), strict=True):
        style.points(axes, places + shift, data[name].sel(part="mean"), data[name].sel(part="error"), label, colour)
    style.theory(axes, [-0.4, places[-1] + 0.4], [1.0, 1.0], "noise equilibrium of a linear net")
    axes.set_xticks(places, list(data.activation.values))
    axes.set(ylabel="cosine of WΣₓW′ and U′ΣₑU", ylim=(0, 1.08))
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
        statement="SGD with fresh data makes W Σ_x W' and U'Σ_ε U alike also in nonlinear autoencoders, less "
        "so than in linear ones; gradient descent on a fixed data set does not. The paper sees the noise of SGD in the "
        "difference; in a tanh net fresh data make nearly all of it, without noise. `latent-fresh-data` parts the two.",
        equation="W Σ_x W'/Tr Σ_x = U'Σ_ε U/Tr Σ_ε",
        alternative="Noise makes the matrices alike in nonlinear nets as in linear ones, and fresh data have no part "
        "in it.",
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
        statement="In a linear autoencoder noise makes the two matrices alike, with fresh and with fixed data. In "
        "nonlinear ones fresh data make W and U orthogonal with hardly any noise, and the matrices as alike as that "
        "makes them; on a fixed data set SGD leaves them unlike.",
        equation="W Σ_x W'/Tr Σ_x = U'Σ_ε U/Tr Σ_ε at the noise equilibrium;  the cosine is "
        "(n + 4)/√(n (n + 24)) for orthogonal W and U, n inputs",
        alternative="Fresh data without noise take nonlinear nets to the noise equilibrium, where the cosine is 1, and "
        "noise on fixed data makes the matrices as alike as fresh data do.",
        scales={
            "smoke": Latent(12, 1500, 12, 500, batch=5, samples=100, width=20),
            "default": Latent(8, 10_000, 12, 2000),
            "full": Latent(64, 10_000, 64, 4000),
        },
        measure=_measure_control,
        draw=_draw_control,
        accelerated=True,
    ),
)
