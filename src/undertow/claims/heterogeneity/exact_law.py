"""The draws of `MatrixSensing` have the law of explicit measurements, whatever the ensemble."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key
from scipy.stats import ks_2samp

from undertow import trees
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import AtLevel, Check, Within
from undertow.figures.compare import compare
from undertow.noise.laws import Table, Uniform
from undertow.noise.sensing import MatrixSensing, explicit_gradient

ENSEMBLES: Any = ("goe", "full")


@dataclass(frozen=True)
class Draws:
    """Stochastic gradients at a fixed point, by the exact law and from measurements drawn one by one."""

    draws: int
    """Of each kind, for each ensemble."""
    d: int = 6
    """Dimension of the matrices."""
    m: int = 12
    """Measurements in a batch."""


def _kinds(parameters: Draws) -> dict[str, MatrixSensing]:
    table = Table([[-1.0, 0.5], [2.0, 1.0], [0.5, -2.0]], [0.2, 0.5, 0.3])
    density = Uniform([-1.0, 0.0], [2.0, 1.5])
    return {
        f"{name}, {'pooled' if pooled else 'one environment'}, {ensemble}": MatrixSensing(
            parameters.d, parameters.m, law, pooled=pooled, ensemble=ensemble, key=jax.random.key(1), dtype=jnp.float32
        )
        for name, law in (("table", table), ("density", density))
        for pooled in (False, True)
        for ensemble in ENSEMBLES
    }


def _explicit(noise: MatrixSensing, point: Array, key: Key[Array, ""]) -> Array:
    """One draw from m measurements."""
    k1, k2 = jax.random.split(key)
    d = point.shape[0]
    x = jax.random.normal(k1, (noise.m, d, d), point.dtype)
    x = (x + jnp.swapaxes(x, 1, 2)) / 2 if noise.ensemble == "goe" else x
    sizes = noise.law.draw(k2, noise.m if noise.pooled else 1).astype(point.dtype)
    return explicit_gradient(noise, point, x, jnp.broadcast_to(sizes, (noise.m, sizes.shape[1])))


def _statistics(draws: Array, point: Array) -> Array:
    """Numbers that would show a difference: entries, lengths, and inner products with fixed matrices."""
    fixed = jax.random.normal(jax.random.key(2), (4, *point.shape), point.dtype)
    along = jnp.einsum("nij,kij->nk", draws, fixed)
    length = jnp.linalg.norm(draws, axis=(1, 2))
    second = jnp.linalg.norm(draws[:, :, 0], axis=1)
    return jnp.concatenate([along, along[:, :2] ** 2, length[:, None], second[:, None], draws[:, 0, :2]], axis=1)


def _measure(parameters: Draws, key: Key[Array, ""]) -> Measurement:
    point = jax.random.normal(jax.random.fold_in(key, 1), (parameters.d, parameters.d), jnp.float32) / 2
    checks, values = [], []
    for index, (name, noise) in enumerate(_kinds(parameters).items()):
        keys = jax.random.split(jax.random.fold_in(key, index), 2 * parameters.draws)
        sample = eqx.filter_jit(lambda f, ks: jax.lax.map(f, ks, batch_size=2000))
        exact = sample(lambda k, noise=noise: noise.draw(k, point), keys[: parameters.draws])
        plain = sample(lambda k, noise=noise: _explicit(noise, point, k), keys[parameters.draws :])
        one, two = (np.asarray(_statistics(x, point)) for x in (exact, plain))
        p = min(ks_2samp(a, b).pvalue for a, b in zip(one.T, two.T, strict=True)) * one.shape[1]
        checks.append(
            Check(
                f"{name}: p-value", float(min(p, 1)), 1.0, 0.0, AtLevel(1e-3 / 8, "Kolmogorov-Smirnov, all statistics")
            )
        )
        squares = np.asarray(jnp.sum(exact**2, axis=(1, 2)), np.float64)
        told = float(noise.covariance(point).trace()) + float(trees.dot(noise.mean(point), noise.mean(point)))
        error = squares.std() / np.sqrt(len(squares)) / told
        checks.append(Check(f"{name}: E|G U|^2", squares.mean() / told, 1.0, error, Within(1e-4, 0.2)))
        values.append(p)
    return Measurement(tuple(checks), xarray.Dataset({"p": ("kind", values)}), parameters.draws)


def _draw(measurement: Measurement, parameters: Any) -> Any:
    return compare([check for check in measurement.checks if "E|G" in check.what])


CLAIMS = (
    Claim(
        id="exact-law",
        paper="heterogeneity",
        place="Algorithms 1 and 2, the law of a step",
        statement="A step on fresh Gaussian measurements has the law of one Gaussian matrix and a chi-square, with one "
        "environment a step and pooled, for symmetric and for full measurements: no measurement need be drawn.",
        equation="G = (c/m) M + (sqrt(c)/m) (|M| Z - <Z, M/|M|> M),  c ~ chi^2_m",
        scales={"smoke": Draws(8_000), "default": Draws(50_000), "full": Draws(200_000)},
        measure=_measure,
        draw=_draw,
    ),
)
