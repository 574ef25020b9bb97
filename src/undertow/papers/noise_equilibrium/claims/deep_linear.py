"""The noise equilibrium of a deep linear network: the corrected closed form and the printed one."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.problem import Problem
from undertow.symmetry.closed_forms import deep_linear
from undertow.symmetry.equilibrium import equilibrium
from undertow.symmetry.generators import DoubleRotation
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Nets:
    """Random deep linear networks at the global minimum, with anisotropic inputs and label noise."""

    draws: int
    """Number of networks at each depth whose closed form is inserted into the equations."""
    searched: int
    """Number of networks whose equilibrium is computed on data."""
    inputs: int = 5
    """Number of inputs."""
    outputs: int = 4
    """Number of outputs, the rank of the product."""
    width: int = 5
    """Inner width."""
    depth: int = 4
    """Number of layers of the networks whose equilibrium is computed."""


@partial(jax.jit, static_argnames="size")
def _covariance(key: Key[Array, ""], size: int, scale: float) -> Array:
    """Return a covariance with random eigenvectors and eigenvalues from 0.3 to 1.7 times `scale`."""
    turn = jnp.linalg.qr(jax.random.normal(key, (size, size), jnp.float64))[0]
    return scale * (turn * jnp.linspace(0.3, 1.7, size)[None]) @ turn.T


def _root(matrix: np.ndarray, power: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**power) @ vectors.T


def _product(layers: list[np.ndarray], like: np.ndarray) -> np.ndarray:
    """Return the product of the layers, from the last to the first, times `like`."""
    total = like
    for layer in layers:
        total = layer @ total
    return total


def _residual(layers: list[np.ndarray], inputs: np.ndarray, noise: np.ndarray) -> float:
    """Return the largest relative residual of the equations of Theorem E.1 at the global minimum."""
    worst = 0.0
    for i in range(len(layers) - 1):
        before = _product(layers[:i], np.eye(layers[0].shape[1]))
        after = _product(layers[i + 2 :], np.eye(layers[i + 1].shape[0]))
        c0 = np.trace(before @ inputs @ before.T) * noise
        c1 = np.trace(after.T @ noise @ after) * inputs
        left = layers[i + 1].T @ after.T @ c0 @ after @ layers[i + 1]
        right = layers[i] @ before @ c1 @ before.T @ layers[i].T
        worst = max(worst, float(2 * np.linalg.norm(left - right) / (np.linalg.norm(left) + np.linalg.norm(right))))
    return worst


def printed_layers(
    product: np.ndarray, inputs: np.ndarray, noise: np.ndarray, depth: int, width: int
) -> list[np.ndarray]:
    """Return the layers of Eq. (17)-(18), as printed."""
    left, s, right = np.linalg.svd(_root(noise, 0.5) @ product @ _root(inputs, 0.5), full_matrices=False)
    d, total = len(s), s.sum()
    ends = (d / total) ** ((depth - 2) / (2 * depth)) * np.sqrt(s)
    frame = np.eye(width, d)
    middle = (total / d) ** (1 / depth) * frame @ frame.T
    first = frame @ (ends[:, None] * right) @ _root(inputs, -0.5)
    return [first, *[middle] * (depth - 2), _root(noise, -0.5) @ (left * ends) @ frame.T]


def _equations(parameters: Nets, key: Key[Array, ""]) -> tuple[tuple[Check, ...], xarray.Dataset]:
    """Insert the corrected and the printed closed form into the pairwise equations at every depth."""
    ours, paper, plain, error = np.zeros((4, parameters.draws, len(DEPTHS)))
    for row, k in enumerate(jax.random.split(key, parameters.draws)):
        keys = jax.random.split(k, 3)
        product = np.asarray(jax.random.normal(keys[0], (parameters.outputs, parameters.inputs), jnp.float64))
        square = product[:, : parameters.outputs]
        x = np.asarray(_covariance(keys[1], parameters.inputs, 2.0))
        e = np.asarray(_covariance(keys[2], parameters.outputs, 0.5))
        eye = np.eye(parameters.outputs)
        for column, depth in enumerate(DEPTHS):
            widths = [parameters.width] * (depth - 1)
            layers = [np.asarray(w) for w in deep_linear(*jax.device_put((product, x, e)), widths)]
            ours[row, column] = _residual(layers, x, e)
            error[row, column] = np.linalg.norm(_product(layers, np.eye(parameters.inputs)) - product)
            paper[row, column] = _residual(printed_layers(product, x, e, depth, parameters.width), x, e)
            # isotropic inputs and noise of unit variance, with as many inputs as outputs
            plain[row, column] = _residual(printed_layers(square, eye, eye, depth, parameters.width), eye, eye)
    checks = (
        Check("corrected closed form: largest residual of the pairwise equations", ours.max(), 0.0, 0.0, Below(1e-10),
              alternative=paper[:, 1:].min()),
        Check("corrected closed form: largest error of the product", error.max(), 0.0, 0.0, Below(1e-10)),
        Check("Eq. (18) as printed: least residual at depth 3 or more", paper[:, 1:].min(), 0.0, 0.0, Above(0.3),
              alternative=0.0),
        Check("Eq. (18) as printed, isotropic with unit variance: largest residual", plain.max(), 0.0, 0.0,
              Below(1e-10)),
    )  # fmt: skip
    data = xarray.Dataset(
        {"ours": (("draw", "depth"), ours), "paper": (("draw", "depth"), paper)}, coords={"depth": list(DEPTHS)}
    )
    return checks, data


def _loss(params: PyTree, sample: PyTree) -> Array:
    x, y = sample
    for layer in params:
        x = layer @ x
    return jnp.sum((x - y) ** 2)


@eqx.filter_jit
def _independent(key: Key[Array, ""], product: Array, inputs: Array, noise: Array) -> Problem:
    """Return y = V x + noise on a finite set with exactly independent x and noise: all pairs of both."""

    def points(k: Key[Array, ""], covariance: Array) -> Array:
        """Return points, with both signs, that have this second moment."""
        size = covariance.shape[0]
        white = jnp.linalg.qr(jax.random.normal(k, (size, size), jnp.float64))[0] * np.sqrt(size)
        root = jnp.linalg.cholesky(covariance)
        return jnp.concatenate([white, -white]) @ root.T

    k1, k2 = jax.random.split(key)
    x, e = points(k1, inputs), points(k2, noise)
    many = jnp.repeat(x, e.shape[0], axis=0)
    return Problem(_loss, (many, many @ product.T + jnp.tile(e, (x.shape[0], 1))))


def _pairs(depth: int) -> tuple[DoubleRotation, ...]:
    return tuple(DoubleRotation(lambda p, i=i: p[i + 1], lambda p, i=i: p[i]) for i in range(depth - 1))


def _search(parameters: Nets, key: Key[Array, ""]) -> tuple[tuple[Check, ...], xarray.Dataset]:
    """Compute the common equilibrium of all pairs of neighbours on data, from random factors of the product."""
    measured, theory, printed, moved = [], [], [], []
    symmetries = _pairs(parameters.depth)
    for k in jax.random.split(key, parameters.searched):
        keys = jax.random.split(k, 5)
        shape = (parameters.outputs, parameters.inputs)
        product = jax.random.normal(keys[0], shape, jnp.float64)
        x, e = _covariance(keys[1], parameters.inputs, 2.0), _covariance(keys[2], parameters.outputs, 0.5)
        problem = _independent(keys[3], product, x, e)
        widths = [parameters.outputs] * (parameters.depth - 1)
        params = _scrambled(keys[4], deep_linear(product, x, e, widths))
        end = equilibrium(Minibatch(problem, 1), params, symmetries, step_size=0.01)
        norms = lambda layers: [float(np.sum(np.asarray(w) ** 2)) for w in layers]
        measured.append(norms(end.params))
        theory.append(norms(deep_linear(product, x, e, widths)))
        matrices = [np.asarray(matrix) for matrix in (product, x, e)]
        printed.append(norms(printed_layers(*matrices, parameters.depth, widths[0])))
        whole = np.linalg.multi_dot([np.asarray(layer) for layer in end.params[::-1]])
        moved.append(float(np.linalg.norm(whole - matrices[0]) / np.linalg.norm(matrices[0])))
    ratio, wrong = np.array(measured) / np.array(theory), np.array(printed) / np.array(theory)
    names = ["first layer", *[f"layer {i + 2}" for i in range(parameters.depth - 2)], "last layer"]
    checks = (
        *(
            Check(f"squared norm of the {name} / corrected closed form", ratio[row, i], 1.0, 0.0, Within(1e-6, 1e-3),
                  printed=wrong[row, i], alternative=wrong[row, i])
            for i, name in enumerate(names) for row in [int(np.argmax(np.abs(ratio[:, i] - 1)))]
        ),
        Check("largest relative change of the product", max(moved), 0.0, 0.0, Below(1e-8)),
    )  # fmt: skip
    data = xarray.Dataset({"ratio": (("searched", "layer"), ratio), "printed": (("searched", "layer"), wrong)})
    return checks, data


def _measure(parameters: Nets, key: Key[Array, ""]) -> Measurement:
    k1, k2 = jax.random.split(key)
    norms, ratios = _search(parameters, k1)
    equations, residuals = _equations(parameters, k2)
    return Measurement((*norms, *equations), ratios.merge(residuals), parameters.draws)


@jax.jit
def _scrambled(key: Key[Array, ""], layers: list[Array]) -> list[Array]:
    """Return another point of the orbit, by random invertible matrices between neighbours."""
    layers = list(layers)
    for i, k in enumerate(jax.random.split(key, len(layers) - 1)):
        size = layers[i].shape[0]
        drawn = jax.random.normal(k, (size, size), jnp.float64)
        between = jax.scipy.linalg.expm(0.3 * drawn)
        layers[i], layers[i + 1] = between @ layers[i], layers[i + 1] @ jnp.linalg.inv(between)
    return layers


def _draw(measurement: Measurement, parameters: Nets) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.4)
    data = measurement.data
    layers = np.arange(data.sizes["layer"]) + 1
    style.theory(left, layers, np.ones(len(layers)), "theory", "grey")
    for name, words, colour in (("printed", "Eq. (18) as printed", "red"), ("ratio", "equilibrium on data", "blue")):
        style.points(left, layers, data[name].mean("searched"), None, words, colour)
    left.set(xlabel="layer", ylabel="squared norm / corrected closed form", xticks=layers)
    for name, words, colour in (("paper", "Eq. (18) as printed", "red"), ("ours", "corrected", "blue")):
        style.points(right, data.depth, data[name].max("draw"), None, words, colour)
    right.set(yscale="log", xlabel="layers D", ylabel="largest relative residual of Eq. (109)")
    for axes in (left, right):
        axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="deep-linear-norms",
        paper="noise_equilibrium",
        place="Theorem 5.4, Eq. (18)-(19), and Theorem E.1",
        statement="The common equilibrium of all neighbouring layers on data is the corrected closed form: the norms "
        "are equal in the middle and set by the traces of Σ_x and Σ_ε at the ends. It solves the pairwise equations "
        "at every depth. The printed form, with d instead of the traces, does so only if both traces are d.",
        equation="W_i+1' ξ' C_0 ξ W_i+1 = W_i h C_1 h' W_i',  Tr Σ_1² = β Tr Σ_x,  Tr Σ_i² = β d,  Tr Σ_D² = β Tr Σ_ε",
        alternative="The layers are those of Eq. (18), with d instead of both traces.",
        rests_on=("stationary-condition",),
        controls=True,
        scales={"smoke": Nets(5, 2), "default": Nets(50, 5), "full": Nets(300, 15)},
        measure=_measure,
        draw=_draw,
    ),
)
