"""Two linear layers: SGD brings W Gamma_W W' and U'Gamma_U U together, gradient descent keeps them apart."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.models.linear_nets import GaussianPairs, balance, condensed, cosine, two_layer_loss, xavier
from undertow.noise.additive import noiseless
from undertow.noise.minibatch import Minibatch


@dataclass(frozen=True)
class Alignment:
    """A two-layer linear net on a fixed data set y = x + eps, by SGD and by gradient descent from the same starts."""

    seeds: int
    """Runs of SGD, each with its own start, and as many of gradient descent."""
    inputs: int = 30
    """Inputs and outputs."""
    hidden: int = 40
    """Hidden units."""
    samples: int = 1000
    """Samples of the data set."""
    batch: int = 10
    """Samples a step of SGD."""
    step_size: float = 0.01
    """Of both."""
    steps: int = 5000
    """Steps of SGD."""
    descent_steps: int = 1500
    """Steps of gradient descent."""


def _measure(parameters: Alignment, key: Key[Array, ""]) -> Measurement:
    ones = jnp.ones(parameters.inputs, jnp.float32)
    draw, run_key = jax.random.split(key)
    problem = GaussianPairs(ones, ones).population(two_layer_loss).sample(draw, parameters.samples)

    def difference(params: Any) -> Array:
        a, b = balance(params, problem)
        return jnp.sqrt(jnp.sum((a - b) ** 2) / jnp.sum(a**2))

    common: dict[str, Any] = {
        "step_size": parameters.step_size, "key": run_key, "seeds": parameters.seeds, "progress": False,
        "observe": {"difference": difference, "cosine": lambda p: cosine(*balance(p, problem))},
        "lane_width": parameters.seeds,
    }  # fmt: skip
    init = lambda k: xavier(k, inputs=parameters.inputs, hidden=parameters.hidden)
    runs = {
        "SGD": descend(
            Minibatch(problem, parameters.batch), init, steps=parameters.steps, every=parameters.steps // 20, **common
        ),
        # a linear net sees only second moments: the same descent, with fewer samples
        "GD": descend(
            noiseless(condensed(problem)), init, steps=parameters.descent_steps,
            every=parameters.descent_steps // 20, **common,
        ),
    }  # fmt: skip
    bounds = {"SGD": {"difference": Below(0.20), "cosine": Above(0.98)},
              "GD": {"difference": Above(0.8), "cosine": Below(0.6)}}  # fmt: skip
    checks, data = [], {}
    for name, run in runs.items():
        for what, criterion in bounds[name].items():
            values = run.observed[what]
            error = values[:, -1].std(ddof=1) / np.sqrt(parameters.seeds)
            label = {"difference": "|a - b|/|a|", "cosine": "cosine of a and b"}[what]
            predicted = {"difference": 0.0, "cosine": 1.0}[what]
            checks.append(Check(f"{name}: {label}", float(values[:, -1].mean()), predicted, float(error), criterion))
            data[f"{name}_{what}"] = (("seed", f"{name}_step"), values)
    coordinates = {f"{name}_step": run.step for name, run in runs.items()}
    diverged = int(sum(run.diverged.sum() for run in runs.values()))
    return Measurement(tuple(checks), xarray.Dataset(data, coords=coordinates), parameters.seeds, diverged)


def _draw(measurement: Measurement, parameters: Alignment) -> Any:
    figure, panels = style.new_figure(2, width=4.2)
    data = measurement.data
    for axes, what, label in zip(panels, ("difference", "cosine"), ("|a − b|/|a|", "cosine of a and b"), strict=True):
        for name, colour in (("SGD", "blue"), ("GD", "red")):
            values = data[f"{name}_{what}"].values
            spread = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            style.points(axes, data[f"{name}_step"], values.mean(axis=0), spread, name, colour)
        target = 0.0 if what == "difference" else 1.0
        style.theory(axes, [0, float(data.SGD_step[-1])], [target, target], "noise equilibrium")
        axes.set(xlabel="steps", ylabel=label)
        axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="two-layer-alignment",
        paper="noise_equilibrium",
        place="Figure 2 and Theorem 5.2",
        statement="SGD on a two-layer linear net aligns its layers, a = W Gamma_W W' with b = U'Gamma_U U, up to "
        "fluctuations; gradient descent from the same starts (Xavier) keeps them apart.",
        equation="W E[|r|^2 xx'] W' = U' E[|x|^2 rr'] U,  r = UWx - y",
        scales={"smoke": Alignment(4), "default": Alignment(16), "full": Alignment(128)},
        measure=_measure,
        draw=_draw,
    ),
)
