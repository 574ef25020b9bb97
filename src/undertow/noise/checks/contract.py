"""The contract of `randomness`, `gradient` and `covariance`: shapes, types, keys and transformations of JAX."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow.noise.base import AbstractNoise
from undertow.noise.checks.table import CheckRow
from undertow.problem import Population

__all__ = ["contract_rows", "error_line"]

COUNT = 5
"""The number of slices in the checks of this module."""


def contract_rows(noise: AbstractNoise, params: PyTree, key: Key[Array, ""]) -> list[CheckRow]:
    """Return one row per rule of the protocol. After a failure the other rules are skipped, since they build on it."""
    rows: list[CheckRow] = []
    for name, rule in _RULES.items():
        if rows and rows[-1].status != "ok":
            rows.append(CheckRow(name, "skipped", remark="an earlier check failed"))
            continue
        try:
            remark = rule(noise, params, key)
        except Exception as error:  # an error of the user's code is a failed check
            remark = error_line(error)
        rows.append(CheckRow(name, "failed" if remark else "ok", remark=remark))
    return rows


def error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"it raised {type(error).__name__}: {lines[0] if lines else ''}"


def _accepts_params(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    noise.check(params)
    return ""


def _leading_axis(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    for like in (params, None):
        call = f"randomness(key, count, {'None' if like is None else 'params'})"
        for count in (1, COUNT):
            leaves = jax.tree.leaves(noise.randomness(key, count, like))
            if not leaves:
                return f"`{call}` has no arrays; return the random numbers, or `jax.random.split(key, count)`"
            for leaf in leaves:
                if jnp.shape(leaf)[:1] != (count,):
                    return (
                        f"`{call}` has a leaf of shape {jnp.shape(leaf)} for count={count}; give every leaf the "
                        "leading axis `count`"
                    )
    return ""


def _without_params(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    other = jax.tree.map(lambda leaf: 2 * leaf + 1, params)
    one, two = (noise.randomness(key, COUNT, like) for like in (params, other))
    if jax.tree.structure(one) == jax.tree.structure(two) and _same(one, two):
        return ""
    return (
        "`randomness(key, count, like)` differs for two params of the same shapes; use the shapes of `like` alone: it "
        "is called once per block of steps, and params move within the block"
    )


def _gradient_like_params(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    for like in (params, None):
        drawn = trees.take(noise.randomness(key, COUNT, like), 0)
        remark = trees.mismatch(jax.eval_shape(noise.gradient, params, drawn), params, "gradient(params, slice)")
        if remark:
            return remark
    values = jax.tree.leaves(noise.gradient(params, trees.take(noise.randomness(key, 1, params), 0)))
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in values):
        return "`gradient(params, slice)` is not finite; check the loss and its derivative at these params"
    return ""


def _mean_like_params(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    if isinstance(noise.problem, Population):  # its mean is only known by Monte Carlo
        return ""
    return trees.mismatch(jax.eval_shape(noise.mean, params), params, "mean(params)")


def _with_and_without_like(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    one, two = (_gradients(noise, params, noise.randomness(key, COUNT, like)) for like in (params, None))
    if _close(one, two, params):
        return ""
    return (
        "`randomness(key, count)` and `randomness(key, count, params)` lead to different gradients; the numbers must "
        "be those that `gradient` draws from the keys"
    )


@eqx.filter_jit
def _gradients(noise: AbstractNoise, params: PyTree, slices: PyTree) -> PyTree:
    return jax.vmap(lambda s: noise.gradient(params, s))(slices)


def _under_jit(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    def draw(noise: AbstractNoise, params: PyTree, key: Array) -> PyTree:
        return noise.gradient(params, trees.take(noise.randomness(key, COUNT, params), 1))

    if _close(eqx.filter_jit(draw)(noise, params, key), draw(noise, params, key), params):
        return ""
    return "`gradient` has another value under `jit`; do not branch on values or keep state between calls"


def _under_vmap(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    slices = noise.randomness(key, COUNT, params)
    together = _gradients(noise, params, slices)
    one = eqx.filter_jit(lambda n, p, s: n.gradient(p, s))
    alone = [one(noise, params, trees.take(slices, j)) for j in range(COUNT)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    return "" if _close(together, stacked, params) else "`gradient` has another value under `vmap` over the slices"


def _in_a_loop(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    """Compare two lanes of a compiled loop over a block, as the engine of `descend` runs it, with a Python loop."""
    keys = jax.random.split(key, 2)

    def step(noise: AbstractNoise, p: PyTree, slice: PyTree) -> PyTree:
        return jax.tree.map(lambda x, d: x - jnp.asarray(0.01, x.dtype) * d, p, noise.gradient(p, slice))

    @eqx.filter_jit
    def compiled(noise: AbstractNoise, params: PyTree, keys: Array) -> PyTree:
        slices = jax.vmap(lambda k: noise.randomness(k, COUNT, params), out_axes=1)(keys)
        lanes = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
        both = jax.vmap(lambda p, drawn: step(noise, p, drawn))
        return jax.lax.fori_loop(0, COUNT, lambda j, p: both(p, trees.take(slices, j)), lanes)

    plain, one_step = [], eqx.filter_jit(step)
    for lane in range(2):
        p, slices = params, noise.randomness(keys[lane], COUNT, params)
        for j in range(COUNT):
            p = one_step(noise, p, trees.take(slices, j))
        plain.append(p)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plain)
    same = _close(compiled(noise, params, keys), stacked, params)
    return "" if same else "five steps in a compiled loop end at other params than five steps in Python"


def _covariance_like_params(noise: AbstractNoise, params: PyTree, key: Array) -> str:
    vector = trees.standard_normal(key, params)
    sigma = noise.covariance(params)
    remark = trees.mismatch(sigma.mv(vector), params, "covariance(params).mv(v)")
    if not remark:
        normals = trees.standard_normal(key, sigma.normal_structure())
        remark = trees.mismatch(sigma.sqrt_mv(normals), params, "covariance(params).sqrt_mv(z)")
    if remark:
        return remark
    compiled = eqx.filter_jit(lambda noise, p, v: noise.covariance(p).mv(v))(noise, params, vector)
    return "" if _close(compiled, sigma.mv(vector), params) else "`covariance` has another value under `jit`"


Rule = Callable[[AbstractNoise, PyTree, Array], str]

_RULES: dict[str, Rule] = {
    "check(params)": _accepts_params,
    "randomness: leading axis": _leading_axis,
    "randomness: independent of params": _without_params,
    "gradient: shapes, dtypes, finite": _gradient_like_params,
    "mean: shapes, dtypes": _mean_like_params,
    "gradient: same with and without like": _with_and_without_like,
    "gradient: under jit": _under_jit,
    "gradient: under vmap": _under_vmap,
    "gradient: in a compiled loop": _in_a_loop,
    "covariance: shapes, dtypes, under jit": _covariance_like_params,
}
"""The rules in the order of the checks: a later rule assumes the earlier ones. A rule returns its failure as a
sentence, or an empty text if the noise passes."""


def _same(one: PyTree, two: PyTree) -> bool:
    def bits(leaf: Array) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(bits(a), bits(b), equal_nan=False) for a, b in pairs)


def _close(one: PyTree, two: PyTree, params: PyTree) -> bool:
    """Return whether two pytrees agree up to rounding, relative to the largest entry of all."""
    a, b = (np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(t)]) for t in (one, two))
    scale = max(float(np.abs(b).max()), 1e-30)
    return bool(np.all(np.abs(a - b) <= np.sqrt(trees.machine_epsilon(params)) * scale))
