"""How sharp usual starts of a two-layer linear net are, beside where SGD ends."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key

from undertow.figures import style
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, hessian_trace
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Widths:
    """Random starts of an autoencoder with n inputs and outputs, and d = n, 2n and 4n hidden units."""

    draws: int
    """Starts of each kind at each width."""
    inputs: int = 12
    """n."""
    label_variance: float = 0.1
    """Of y - x, for a net with d = n/2 hidden units; x has 1."""


def _variances(n: int, d: Any) -> dict[str, tuple[Any, Any]]:
    """Of U and of W, for each start."""
    return {
        "variances 1 and 1/n": (1.0, 1 / n),
        "variances 1/d and 1/n": (1 / d, 1 / n),
        "variances 1/(n + d)": (1 / (n + d), 1 / (n + d)),
        "variances 2/(n + d)": (2 / (n + d), 2 / (n + d)),
    }


def _told(n: int, d: np.ndarray) -> dict[str, np.ndarray]:
    """S_init/S_end of Eq. (15) for each start, with min(d, n) = n."""
    return {name: d * (of_u + of_w) / 2 for name, (of_u, of_w) in _variances(n, d).items()}


@functools.partial(jax.jit, static_argnums=0)
def _narrow(n: int, label_variance: Float[Array, ""]) -> tuple[Array, Array]:
    """At d = n/2: W Gamma_W W' over U'Gamma_U U where all singular values are 1, and the balanced Tr H over that one.

    The best UW projects on d directions; r = UWx - y has the rest of x in it, so that r and x are not independent.
    """
    d = n // 2
    law = GaussianPairs(jnp.ones(n), jnp.full(n, label_variance))
    u, w = jnp.eye(n, d), jnp.eye(d, n)
    of_inputs, of_residuals = law.gammas(u @ w)
    ratio = jnp.trace(w @ of_inputs @ w.T) / jnp.trace(u.T @ of_residuals @ u)  # both are multiples of I
    turned = ratio**0.25
    sharp = lambda a, b: hessian_trace({"U": a, "W": b}, law.input_variance)
    return ratio, sharp(turned * u, w / turned) / sharp(u, w)


def _measure(parameters: Widths, key: Key[Array, ""]) -> Measurement:
    n = parameters.inputs
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    widths = n * np.array([1, 2, 4])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _variances(n, n)}
    for d in widths:
        # y = x + noise, both white: U = W' = I is balanced, and SGD ends at a rotation of it
        end = float(hessian_trace({"U": jnp.eye(n, int(d)), "W": jnp.eye(int(d), n)}, jnp.ones(n)))
        for name, (of_u, of_w) in _variances(n, d).items():
            u, w = (rng.standard_normal((parameters.draws, n * d)) * np.sqrt(v) for v in (of_u, of_w))
            # Tr H of the white data: n |W|^2 + |U|^2 n, twice
            found[name].append(statistics.mean(2 * n * ((u**2).sum(1) + (w**2).sum(1)) / end))
    told = _told(n, widths)
    ratio = {name: [(m / t, e / t) for (m, e), t in zip(v, told[name], strict=True)] for name, v in found.items()}
    worst = {name: max(v, key=lambda pair: abs(pair[0] - 1) / pair[1]) for name, v in ratio.items()}
    as_printed, right_one, half, twice = found.values()
    unbalanced, sharper = (float(value) for value in _narrow(n, jnp.asarray(parameters.label_variance)))
    rho = 1 + (n - n // 2) / (n * parameters.label_variance)
    checks = (
        Check("start called Kaiming, U of variance 1, at d = n: S_init/S_end", as_printed[0][0], (n + 1) / 2,
              as_printed[0][1], Within(0.05, 1.0), printed=1.0, alternative=1.0),
        Check("with variance 1/d in U, at d = n", right_one[0][0], 1.0, right_one[0][1], Within(0.01, 0.1),
              alternative=(n + 1) / 2),
        Check("with variance 1/d in U, at d = 2n and more: least", min(right_one[1:])[0], 1.5, min(right_one[1:])[1],
              Above(1.0)),
        Check("start called Xavier, variances 1/(n + d), at d = n", half[0][0], 0.5, half[0][1], Within(0.01, 0.1),
              printed=1.0, alternative=1.0),
        Check("Xavier's own variances 2/(n + d), at d = n", twice[0][0], 1.0, twice[0][1], Within(0.01, 0.1),
              alternative=0.5),
        Check("d = n/2, singular values 1: W Γ_W W' over U'Γ_U U", unbalanced, rho, 0.0, Within(1e-9, 0.1),
              printed=1.0, alternative=1.0),
        Check("d = n/2: S_end over Eq. (15)", sharper, (rho**0.5 + rho**-0.5) / 2, 0.0, Within(1e-9, 0.1), printed=1.0,
              alternative=1.0),
        *(
            Check(f"{name}: S_init/S_end over Eq. (15), worst width", *(worst[name][0], 1.0, worst[name][1]),
                  Within(0.01, 0.1))
            for name in found
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"ratio": (("start", "width", "part"), np.array(list(found.values())))},
        coords={"width": widths, "part": ["mean", "error"]},
        attrs={"starts": list(found)},
    )
    return Measurement(checks, data, parameters.draws)


def _draw(measurement: Measurement, parameters: Widths) -> "Figure":
    figure, (axes,) = style.new_figure(width=6.0)
    data, n = measurement.data, parameters.inputs
    fine = np.geomspace(n, 4 * n, 50)
    told = _told(n, fine)
    for index, (name, colour) in enumerate(zip(data.attrs["starts"], ("red", "blue", "purple", "green"), strict=True)):
        style.theory(axes, fine / n, told[name], "_", colour)
        style.points(axes, data.width / n, data.ratio[index, :, 0], data.ratio[index, :, 1], name, colour)
    axes.axhline(1.0, color=style.COLOURS["grey"], lw=1, ls="--", label="neither sharper nor flatter")
    axes.set(xlabel="hidden units over inputs, d/n", ylabel="S at the start over S at the end", yscale="log")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="sharpness-of-starts",
        paper="noise_equilibrium",
        place="Eq. (15) and the paragraph after it",
        statement="Eq. (15) holds for d ≥ n; what is read off from it does not. With variance 1 in U a square net "
        "starts (n + 1)/2 times sharper than it ends, not equally sharp: variance 1/d is meant. With variances "
        "1/(n + d) it starts half as sharp, not slightly less: Xavier's are twice as large. For d < n the layers do "
        "not balance at equal norms, and the end is sharper than (15) by a factor that grows as label noise falls.",
        equation="S_init/S_end = d (σ_U² + σ_W²)/2,  d ≥ n inputs and outputs;  S_end = "
        "(ρ^1/2 + ρ^-1/2) d Tr Σ_x,  ρ = 1 + (n - d) σ_x²/(n σ_ε²),  d < n",
        alternative="With variances 1 and 1/n a square net starts as sharp as it ends, and with 1/(n + d) nearly so.",
        scales={"smoke": Widths(400), "default": Widths(4000), "full": Widths(40_000)},
        measure=_measure,
        draw=_draw,
    ),
)
