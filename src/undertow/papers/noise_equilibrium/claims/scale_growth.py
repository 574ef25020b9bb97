"""The growth of scale-invariant weights: gradients are orthogonal to them, so every step increases their norm."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.scale_invariant import LinearData, NormalisedLoss, start
from undertow.problem import Problem
from undertow.trajectory import Trajectory
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = 50
"""Number of observations of each run."""
SQUARE = 120.0
"""|theta|^2 at the start, chosen for a growth of about one per cent. The paper does not give it, and the relative
growth falls like its square. The claim compares the growth with eta^2 sum E|g|^2, and with that of gradient descent on
the same data."""


@dataclass(frozen=True)
class Growth:
    """Two-layer tanh networks on linear data, invariant under scaling of all weights (A) or of each layer (B)."""

    seeds: int
    """Number of runs of SGD for each network, each with its own start, observed at every step."""
    descent_seeds: int
    """Number of runs of gradient descent for each network."""
    inputs: int = 10
    """Number of inputs and of outputs."""
    hidden: int = 20
    """Number of hidden units."""
    samples: int = 500
    """Number of samples of the data set."""
    batch: int = 4
    """Samples per step of SGD."""
    step_size: float = 0.02
    """Step size of SGD and of gradient descent."""
    steps: int = 5000
    """Number of steps of SGD and of gradient descent."""


def _layers(params: dict[str, Array]) -> Array:
    """Return |u|^2 and |w|^2."""
    return jnp.stack([jnp.sum(params["u"] ** 2), jnp.sum(params["w"] ** 2)])


class _Power(eqx.Module):
    """The observable E|g|^2 of a batch gradient: |grad L|^2 + Tr Sigma/S."""

    problem: Problem
    batch: int = eqx.field(static=True)

    def __call__(self, params: dict[str, Array]) -> Array:
        square = lambda tree: sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))
        mean = square(self.problem.gradient(params))
        return mean + (self.problem.quadratic(params, square) - mean) / self.batch


def _measure(parameters: Growth, key: Key[Array, ""]) -> Measurement:
    draw, run_key = jax.random.split(key)
    d, dtype = parameters.inputs, jnp.float64
    data = LinearData.draw(draw, samples=parameters.samples, d=d, dtype=dtype)
    init = lambda k: start(k, hidden=parameters.hidden, square=SQUARE, d=d, dtype=dtype)
    simulate = functools.partial(
        descend, params=init, step_size=parameters.step_size, steps=parameters.steps, key=run_key, progress=False
    )
    checks, norms, diverged = [], {}, 0
    for name in "AB":
        problem = data.problem(NormalisedLoss(name))
        noise = Minibatch(problem, parameters.batch)
        sgd = simulate(noise, observe={"layers": _layers}, every=1, seeds=parameters.seeds, lane_width=parameters.seeds)
        few = simulate(
            noise, observe={"power": _Power(problem, parameters.batch)}, every=parameters.steps // LOOKS,
            seeds=parameters.seeds, lane_width=parameters.seeds,
        )  # fmt: skip
        descent = simulate(
            noiseless(problem), observe={"layers": _layers}, every=parameters.steps // LOOKS,
            seeds=parameters.descent_seeds, lane_width=parameters.descent_seeds,
        )  # fmt: skip
        checks += _checks(name, parameters, sgd.observed["layers"], few, descent.observed["layers"])
        norms[f"sgd_{name}"] = (("seed", "step", "layer"), sgd.observed["layers"][:, :: parameters.steps // LOOKS])
        norms[f"descent_{name}"] = (("descent_seed", "step", "layer"), descent.observed["layers"])
        diverged += int(sgd.diverged.sum() + descent.diverged.sum())
    coordinates = {"step": descent.step, "layer": ["u", "w"]}
    return Measurement(tuple(checks), xarray.Dataset(norms, coords=coordinates), parameters.seeds, diverged)


def _checks(name: str, parameters: Growth, layers: np.ndarray, few: Trajectory, descent: np.ndarray) -> list[Check]:
    total = layers.sum(axis=2)
    seeds = parameters.descent_seeds
    growth = 100 * (total[:, -1] / total[:, 0] - 1)
    calm = 100 * (descent[:, -1].sum(axis=1) / descent[:, 0].sum(axis=1) - 1)
    # |theta|^2 grows by eta^2 |g|^2 in every step, exactly
    lengthened = parameters.step_size**2 * np.trapezoid(few.observed["power"], few.step, axis=1)
    ratio = (total[:, -1] - total[:, 0]) / lengthened
    times = growth.mean() / calm.mean()
    error = times * np.hypot(standard_error(growth) / growth.mean(), standard_error(calm) / calm.mean())
    ends = 100 * (layers[:, -1] / layers[:, 0] - 1)
    least = np.diff(layers, axis=1).min(axis=(0, 1))
    checks = [
        Check(f"network {name}: growth of |θ|² under SGD / under gradient descent", float(times), 1.0, float(error),
              Above(10.0), alternative=1.0, samples=seeds),
        Check(f"network {name}, SGD: growth of |θ|² / η² ∑ E|g|²", *_mean(ratio, 1.0), Within(0.02, 0.1),
              alternative=float(calm.mean() / growth.mean())),
        Check(f"network {name}, SGD: least growth of |θ|² in a step", float(np.diff(total, axis=1).min()), 0.0, 0.0,
              Above(0.0)),
        Check(f"network {name}, GD: growth of |θ|² in per cent", *_mean(calm), Below(0.1),
              alternative=float(growth.mean()), samples=seeds),
    ]  # fmt: skip
    if name == "A":
        checks.append(Check("network A, SGD: change of |w|² in per cent", *_mean(ends[:, 1]), Below(0.0)))
    else:
        for k, layer in enumerate("uw"):
            checks.append(
                Check(f"network B, SGD: least growth of |{layer}|² in a step", least[k], 0.0, 0.0, Above(0.0))
            )
    return checks


def _mean(values: np.ndarray, predicted: float = 0.0) -> tuple[float, float, float]:
    """Return mean, prediction and standard error."""
    return float(values.mean()), predicted, float(standard_error(values))


def _draw(measurement: Measurement, parameters: Growth) -> "Figure":
    figure, panels = style.new_figure(3, width=3.6)
    data = measurement.data
    pick = {"|θ|²": lambda v: v.sum(axis=2), "|u|²": lambda v: v[..., 0], "|w|²": lambda v: v[..., 1]}
    for axes, (label, part) in zip(panels, pick.items(), strict=True):
        for name, colour in (("A", "blue"), ("B", "green")):
            for kind, shown, marker in (("sgd", "SGD", "o"), ("descent", "GD", "x")):
                values = part(data[f"{kind}_{name}"].values)
                relative = (values / values[:, :1])[:, ::5]
                spread = standard_error(relative)
                text = f"network {name}, {shown}"
                style.points(axes, data.step[::5], relative.mean(axis=0), spread, text, colour, marker)
        axes.set(xlabel="steps", ylabel=f"{label} / value at the start")
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="scale-growth",
        paper="noise_equilibrium",
        place="Figure 7",
        statement="The norm of scale-invariant weights grows in every step of SGD, and hardly at all under gradient "
        "descent. With a scaling symmetry for each layer (network B) each layer grows; with a common one only "
        "(network A) a layer may shrink.",
        equation="|θ+|² - |θ|² = η² |g|²",
        alternative="Noise does not increase the norm of the weights: it grows as little under SGD as under gradient "
        "descent.",
        controls=True,
        scales={"smoke": Growth(8, 6, samples=200), "default": Growth(16, 8), "full": Growth(128, 16)},
        measure=_measure,
        draw=_draw,
    ),
)
