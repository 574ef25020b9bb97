"""Identities between the methods of a covariance, which hold up to rounding."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow.covariance import AbstractCovariance
from undertow.noise.checks.contract import error_line
from undertow.noise.checks.table import CheckRow

__all__ = ["LARGEST_TRACE", "algebra_rows", "size_along"]

LARGEST_TRACE = 2**14
"""The most entries of params for which traces and moments are checked: some types apply `mv` to every unit vector."""

LARGEST_FACTOR = 2**26
"""The most bytes of a factor that is checked."""

Scalar = Float[Array, ""]


class Setting(NamedTuple):
    """The covariance, the mean gradient m, two random unit vectors u and w, and two draws of normals."""

    sigma: AbstractCovariance
    mean: PyTree
    u: PyTree
    w: PyTree
    normals: tuple[PyTree, PyTree]


class Comparison(NamedTuple):
    """Two sides of an identity as numbers, and their distance with its scale."""

    value: Scalar
    expected: Scalar
    distance: Scalar
    scale: Scalar
    """The size of the sides."""
    cancelled: Scalar
    """The size of the term m m', which some types subtract from a second moment."""


def algebra_rows(sigma: AbstractCovariance, mean: PyTree, key: Key[Array, ""]) -> list[CheckRow]:
    """Return the rows of the covariance at some params; `mean` is the mean gradient there.

    Two sides may differ by the root of the machine epsilon, relative to their size, and by the rounding error of the
    difference of a second moment and the square of the mean.
    """
    eps = trees.machine_epsilon(mean)
    keys = jax.random.split(key, 4)
    normals = tuple(trees.standard_normal(k, sigma.normal_structure()) for k in keys[2:])
    setting = Setting(sigma, mean, _unit(keys[0], mean), _unit(keys[1], mean), (normals[0], normals[1]))
    skipped = _skipped(sigma, mean)
    rows = []
    for name, (identity, remark) in _IDENTITIES.items():
        if name in skipped:
            rows.append(CheckRow(name, "skipped", remark=skipped[name]))
            continue
        try:
            sides = eqx.filter_jit(identity)(setting)
        except Exception as error:  # an error of the user's code is a failed check
            rows.append(CheckRow(name, "failed", remark=error_line(error)))
            continue
        tolerance = np.sqrt(eps) * float(sides.scale) + 64 * eps * float(sides.cancelled)
        passed = float(sides.distance) <= tolerance  # False for NaN
        status = "ok" if passed else "failed"
        rows.append(CheckRow(name, status, float(sides.value), float(sides.expected), remark="" if passed else remark))
    return rows


def _skipped(sigma: AbstractCovariance, params: PyTree) -> dict[str, str]:
    """Return the identities that would take too long or too much memory, with the reason."""
    reasons = {}
    if trees.count(params) > LARGEST_TRACE:
        exact = (TRACE_OUTER, TRACE_IDENTITY, MOMENT_PRODUCT, MOMENT_SQUARE)
        reasons = dict.fromkeys(exact, f"more than {LARGEST_TRACE} parameters")
    try:
        size = trees.floats_bytes(jax.eval_shape(sigma.factor))
    except Exception:  # the identity of the factor reports the error
        return reasons
    if size > LARGEST_FACTOR:
        reasons[FACTOR] = f"the factor takes {size / 2**20:.0f} MiB"
    return reasons


def _unit(key: Array, like: PyTree) -> PyTree:
    vector = trees.standard_normal(key, like)
    return trees.scale(1 / jnp.sqrt(trees.dot(vector, vector)), vector)


def _norm(vector: PyTree) -> Scalar:
    return jnp.sqrt(trees.dot(vector, vector))


def size_along(vector: PyTree, mean: PyTree) -> Scalar:
    """Return the size of v'm and of its rounding error in units of the machine epsilon: |v'm| + |v * m|."""
    return jnp.abs(trees.dot(vector, mean)) + _norm(jax.tree.map(jnp.multiply, vector, mean))


def _combination(u: PyTree, w: PyTree) -> PyTree:
    return trees.add(trees.scale(0.6, u), trees.scale(-1.7, w))


def _images(one: PyTree, two: PyTree, scale: Scalar, cancelled: Scalar) -> Comparison:
    """Compare two vectors; the row shows their norms."""
    return Comparison(_norm(one), _norm(two), _norm(trees.subtract(one, two)), scale, cancelled)


def _numbers(one: Scalar, two: Scalar, scale: Scalar, cancelled: Scalar) -> Comparison:
    return Comparison(one, two, jnp.abs(one - two), scale, cancelled)


def _image_cancelled(s: Setting) -> Scalar:
    return _norm(s.mean) * (size_along(s.u, s.mean) + size_along(s.w, s.mean))


def _pair_scale(s: Setting) -> tuple[Scalar, Scalar]:
    """Return sqrt(u'Sigma u w'Sigma w), the bound of |u'Sigma w|, and the size of u'm m'w."""
    squares = jnp.abs(trees.dot(s.u, s.sigma.mv(s.u)) * trees.dot(s.w, s.sigma.mv(s.w)))
    return jnp.sqrt(squares), size_along(s.u, s.mean) * size_along(s.w, s.mean)


def _linear(s: Setting) -> Comparison:
    image_u, image_w = s.sigma.mv(s.u), s.sigma.mv(s.w)
    together, apart = s.sigma.mv(_combination(s.u, s.w)), _combination(image_u, image_w)
    return _images(together, apart, _norm(image_u) + _norm(image_w), _image_cancelled(s))


def _symmetric(s: Setting) -> Comparison:
    return _numbers(trees.dot(s.u, s.sigma.mv(s.w)), trees.dot(s.w, s.sigma.mv(s.u)), *_pair_scale(s))


def _not_negative(s: Setting) -> Comparison:
    value = jnp.minimum(trees.dot(s.u, s.sigma.mv(s.u)), trees.dot(s.w, s.sigma.mv(s.w)))
    # a negative value is compared with zero: only rounding is allowed
    cancelled = jnp.maximum(size_along(s.u, s.mean), size_along(s.w, s.mean)) ** 2
    return _numbers(value, jnp.maximum(value, 0), jnp.zeros_like(value), cancelled)


def _root_linear(s: Setting) -> Comparison:
    image_x, image_y = (s.sigma.sqrt_mv(z) for z in s.normals)
    together, apart = s.sigma.sqrt_mv(_combination(*s.normals)), _combination(image_x, image_y)
    scale = _norm(image_x) + _norm(image_y)
    return _images(together, apart, scale, jnp.zeros_like(scale))


def _root_square(s: Setting) -> Comparison:
    """Compare R R'u with Sigma u, R = `sqrt_mv`. The transpose R' is the derivative of the linear map R."""
    zeros = trees.zeros_like(s.normals[0])
    _, transpose = jax.vjp(s.sigma.sqrt_mv, zeros)
    image = s.sigma.mv(s.u)
    return _images(s.sigma.sqrt_mv(transpose(s.u)[0]), image, _norm(image), _image_cancelled(s))


def _factor(s: Setting) -> Comparison:
    columns, image = s.sigma.factor(), s.sigma.mv(s.u)
    coefficients = jax.vmap(lambda column: trees.dot(column, s.u), in_axes=-1)(columns)
    return _images(trees.columns(columns, coefficients), image, _norm(image), _image_cancelled(s))


def _trace_outer(s: Setting) -> Comparison:
    trace = s.sigma.trace(lambda v: trees.scale(trees.dot(s.w, v), s.u))
    return _numbers(trace, trees.dot(s.w, s.sigma.mv(s.u)), *_pair_scale(s))


def _trace_identity(s: Setting) -> Comparison:
    trace = s.sigma.trace()
    return _numbers(trace, s.sigma.trace(lambda v: v), jnp.abs(trace), trees.dot(s.mean, s.mean))


def _moment_product(s: Setting) -> Comparison:
    moment = s.sigma.moment(lambda x: trees.dot(s.u, x) * trees.dot(s.w, x))
    return _numbers(moment, trees.dot(s.u, s.sigma.mv(s.w)), *_pair_scale(s))


def _moment_square(s: Setting) -> Comparison:
    trace = s.sigma.trace()
    return _numbers(s.sigma.moment(lambda x: trees.dot(x, x)), trace, jnp.abs(trace), trees.dot(s.mean, s.mean))


LINEAR, SYMMETRIC, NOT_NEGATIVE = "mv: linear", "mv: symmetric", "mv: not negative"
ROOT_LINEAR, ROOT_SQUARE, FACTOR = "sqrt_mv: linear", "sqrt_mv: R R'v = mv(v)", "factor: B B'v = mv(v)"
TRACE_OUTER, TRACE_IDENTITY = "trace(A): A = u w'", "trace(): trace(identity)"
MOMENT_PRODUCT, MOMENT_SQUARE = "moment: (u'x)(w'x)", "moment: |x|^2 = trace()"

_IDENTITIES: dict[str, tuple[Callable[[Setting], Comparison], str]] = {
    LINEAR: (_linear, "`mv(a u + b w)` is not `a mv(u) + b mv(w)`"),
    SYMMETRIC: (_symmetric, "u'mv(w) is not w'mv(u); a covariance is symmetric"),
    NOT_NEGATIVE: (_not_negative, "v'mv(v) is negative; a covariance has no negative eigenvalue"),
    ROOT_LINEAR: (_root_linear, "`sqrt_mv(a x + b y)` is not `a sqrt_mv(x) + b sqrt_mv(y)`"),
    ROOT_SQUARE: (_root_square, "the draws of `sqrt_mv` have another covariance than `mv`"),
    FACTOR: (_factor, "`factor()` gives another covariance than `mv`"),
    TRACE_OUTER: (_trace_outer, "`trace(A)` is not Tr[Sigma A] with the Sigma of `mv`"),
    TRACE_IDENTITY: (_trace_identity, "`trace()` is not `trace(lambda v: v)`"),
    MOMENT_PRODUCT: (_moment_product, "`moment` of (u'x)(w'x) is not u'mv(w)"),
    MOMENT_SQUARE: (_moment_square, "`moment` of |x|^2 is not `trace()`"),
}
"""The identities with the sentence for a covariance that does not have them."""
