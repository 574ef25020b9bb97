"""The sharpness of common initialisations of a two-layer linear network, relative to the end of SGD."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """Random initialisations of an autoencoder with n inputs and outputs, and d = n, 2n and 4n hidden units."""

    draws: int
    """Number of initialisations of each kind at each width."""
    inputs: int = 12
    """Number n of inputs and outputs."""
    label_variance: float = 0.1
    """Variance of y - x for a network with d = n/2 hidden units; x has variance 1."""


def _variances(n: int, d: int | np.ndarray) -> dict[str, tuple[float | np.ndarray, float | np.ndarray]]:
    """Return the variances of U and of W for each initialisation."""
    return {
        "variances 1 and 1/n": (1.0, 1 / n),
        "variances 1/d and 1/n": (1 / d, 1 / n),
        "variances 1/(n + d)": (1 / (n + d), 1 / (n + d)),
        "variances 2/(n + d)": (2 / (n + d), 2 / (n + d)),
    }


def _predicted(n: int, d: np.ndarray) -> dict[str, np.ndarray]:
    """Return S_init/S_end of Eq. (15) for each initialisation, with min(d, n) = n."""
    return {name: d * (of_u + of_w) / 2 for name, (of_u, of_w) in _variances(n, d).items()}


@functools.partial(jax.jit, static_argnums=0)
def _narrow(n: int, label_variance: Float[Array, ""]) -> tuple[Array, Array]:
    """Return, at d = n/2, W Gamma_W W'/(U'Gamma_U U) for unit singular values, and the balanced Tr H over that one.

    The best UW projects on d directions; r = UWx - y contains the rest of x, so that r and x are not independent.
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
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in _variances(n, n)}
    for d in widths:
        # y = x + noise, both white: U = W' = I is balanced, and SGD ends at a rotation of this point
        u, w, ones = jax.device_put((np.eye(n, d), np.eye(d, n), np.ones(n)))
        end = float(hessian_trace({"U": u, "W": w}, ones))
        for name, (of_u, of_w) in _variances(n, int(d)).items():
            u, w = (rng.standard_normal((parameters.draws, n * d)) * np.sqrt(v) for v in (of_u, of_w))
            # Tr H of the white data: n |W|^2 + |U|^2 n, twice
            ratios[name].append(statistics.mean(2 * n * ((u**2).sum(1) + (w**2).sum(1)) / end))
    predicted = _predicted(n, widths)
    relative = {
        name: [(m / t, e / t) for (m, e), t in zip(v, predicted[name], strict=True)] for name, v in ratios.items()
    }
    worst = {name: max(v, key=lambda pair: abs(pair[0] - 1) / pair[1]) for name, v in relative.items()}
    as_printed, right_one, half, twice = ratios.values()
    unbalanced, sharper = (float(value) for value in _narrow(n, jnp.asarray(parameters.label_variance)))
    rho = 1 + (n - n // 2) / (n * parameters.label_variance)
    checks = (
        Check("S_init/S_end at d = n, printed Kaiming with variance 1 in U", as_printed[0][0], (n + 1) / 2,
              as_printed[0][1], Within(0.05, 1.0), printed=1.0, alternative=1.0),
        Check("S_init/S_end at d = n, variance 1/d in U", right_one[0][0], 1.0, right_one[0][1], Within(0.01, 0.1),
              alternative=(n + 1) / 2),
        Check("S_init/S_end at d = 2n and more, variance 1/d in U, least", min(right_one[1:])[0], 1.5,
              min(right_one[1:])[1], Above(1.0)),
        Check("S_init/S_end at d = n, printed Xavier with variances 1/(n + d)", half[0][0], 0.5, half[0][1],
              Within(0.01, 0.1), printed=1.0, alternative=1.0),
        Check("S_init/S_end at d = n, Xavier's variances 2/(n + d)", twice[0][0], 1.0, twice[0][1], Within(0.01, 0.1),
              alternative=0.5),
        Check("W Γ_W W'/(U'Γ_U U) at d = n/2 for unit singular values", unbalanced, rho, 0.0, Within(1e-9, 0.1),
              printed=1.0, alternative=1.0),
        Check("S_end / Eq. (15) at d = n/2", sharper, (rho**0.5 + rho**-0.5) / 2, 0.0, Within(1e-9, 0.1), printed=1.0,
              alternative=1.0),
        *(
            Check(f"(S_init/S_end) / Eq. (15), worst width, {name}", *(worst[name][0], 1.0, worst[name][1]),
                  Within(0.01, 0.1))
            for name in ratios
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"ratio": (("start", "width", "part"), np.array(list(ratios.values())))},
        coords={"width": widths, "part": ["mean", "error"]},
        attrs={"starts": list(ratios)},
    )
    return Measurement(checks, data, parameters.draws)


def _draw(measurement: Measurement, parameters: Widths) -> "Figure":
    figure, (axes,) = style.new_figure(width=6.0)
    data, n = measurement.data, parameters.inputs
    fine = np.geomspace(n, 4 * n, 50)
    predicted = _predicted(n, fine)
    for index, (name, colour) in enumerate(zip(data.attrs["starts"], ("red", "blue", "purple", "green"), strict=True)):
        style.theory(axes, fine / n, predicted[name], "_", colour)
        style.points(axes, data.width / n, data.ratio[index, :, 0], data.ratio[index, :, 1], name, colour)
    axes.axhline(1.0, color=style.COLOURS["grey"], lw=1, ls="--", label="equally sharp")
    axes.set(xlabel="hidden units / inputs, d/n", ylabel="S at the start / S at the end", yscale="log")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="sharpness-of-starts",
        paper="noise_equilibrium",
        place="Eq. (15) and the paragraph after it",
        statement="Eq. (15) holds for d ≥ n, but the conclusions that the paper draws from it do not. With variance 1 "
        "in U a square network starts (n + 1)/2 times sharper than it ends, not equally sharp; the paper's conclusion "
        "needs variance 1/d. With variances 1/(n + d) it starts half as sharp, not slightly less sharp; Xavier's "
        "variances are twice as large. For d < n the layers do not balance at equal norms, and S_end exceeds "
        "Eq. (15) by a factor that grows as the label noise falls.",
        equation="S_init/S_end = d (σ_U² + σ_W²)/2,  d ≥ n inputs and outputs;  S_end = "
        "(ρ^1/2 + ρ^-1/2) d Tr Σ_x,  ρ = 1 + (n - d) σ_x²/(n σ_ε²),  d < n",
        alternative="With variances 1 and 1/n a square network starts as sharp as it ends, and with 1/(n + d) nearly "
        "so.",
        rests_on=("hessian-trace",),
        controls=True,
        scales={"smoke": Widths(400), "default": Widths(4000), "full": Widths(40_000)},
        measure=_measure,
        draw=_draw,
    ),
)
