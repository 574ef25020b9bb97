"""Two-layer nets with quadratic activations, f(x) = sum_j (u_j.x)^2 = <xx', UU'>, and one environment per step.

Training is matrix sensing with the measurements xx', x ~ N(0, I). They are not isotropic: for symmetric D

    E[<xx', D> xx'] = 2 D + tr(D) I,

so the mean of G = 1/m sum_i (f(x_i) - y_i) x_i x_i' is 2 D + tr(D) I, D = UU' - A* - A(e), and not D. Every rule below
removes the trace with t = |U|^2 - mean(y), whose mean is tr D. Algorithm 4 of the paper does it by a division, with
wrong constants (heterogeneity, errata of Algorithm 4): `Shrunk` has the corrected ones, `Printed` those of the paper.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.covariance import Operator
from undertow.noise.base import AbstractNoise
from undertow.sensing.laws import AbstractLaw, LawLike, Numbers
from undertow.sensing.loss import SensingLoss
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.spectral import spectral_norm

__all__ = ["AbstractRule", "Batch", "Printed", "QuadraticNet", "Shrunk", "Unbiased"]

SQUARINGS = 12
"""Squarings for a spectral norm, accurate to one part in a thousand even where all eigenvalues are equal."""


class Batch(NamedTuple):
    """The statistics of a batch that a rule may use."""

    g: Float[Array, "d d"]
    """1/m sum_i (f(x_i) - y_i) x_i x_i', over the samples inside the radius."""
    excess: Float[Array, ""]
    """|U|^2 - mean(y), which estimates tr D."""
    size: Float[Array, ""]
    """|A* + A(e)|, the spectral norm of the target (pooled: of its mean over the batch), not known from data.

    It is computed only for rules with `uses_norm`, and zero for others."""


class AbstractRule(eqx.Module):
    """A map from a batch to a direction g; the update is U - step_size g."""

    uses_norm: ClassVar[bool] = False
    """Whether the rule uses `Batch.size`."""

    @abstractmethod
    def __call__(self, u: Float[Array, "d r"], batch: Batch) -> Float[Array, "d r"]:
        """Return the direction."""


class Unbiased(AbstractRule):
    """g = 1/2 (G - t I) U, whose mean is D U, the gradient of the population loss 1/4 E|UU' - A* - A(e)|^2."""

    def __call__(self, u: Float[Array, "d r"], batch: Batch) -> Float[Array, "d r"]:
        return (batch.g @ u - batch.excess * u) / 2


class Shrunk(AbstractRule):
    """Algorithm 4 with corrected constants: U+ = (U - eta/2 G U)/(1 - eta/2 t).

    This is the unbiased direction at the step size eta/(1 - eta/2 t). Give `descend` the same step size.
    """

    step_size: float

    def __check_init__(self) -> None:
        validate.finite_number("Shrunk", "step_size", self.step_size, positive=True)

    def __call__(self, u: Float[Array, "d r"], batch: Batch) -> Float[Array, "d r"]:
        return Unbiased()(u, batch) / (1 - self.step_size / 2 * batch.excess)


class Printed(AbstractRule):
    """Algorithm 4 as printed: U+ = (U - eta grad L)/(1 - eta (|U|^2 - |A* + A(e)|)), grad L = 4 G U.

    The rule uses the spectral norm of the target instead of its trace. Give `descend` the same step size.
    """

    uses_norm: ClassVar[bool] = True
    step_size: float

    def __check_init__(self) -> None:
        validate.finite_number("Printed", "step_size", self.step_size, positive=True)

    def __call__(self, u: Float[Array, "d r"], batch: Batch) -> Float[Array, "d r"]:
        eta = self.step_size
        after = (u - 4 * eta * batch.g @ u) / (1 - eta * (jnp.sum(u**2) - batch.size))
        return (u - after) / eta


class QuadraticNet(AbstractNoise):
    """SGD on fresh Gaussian inputs of a quadratic net with invariant and spurious neurons: HeteroSGD, or pooled.

    **Arguments:**

    - `d`: the number of inputs; `m`: the number of samples per step.
    - `law`: the law of the spurious neurons' output weights.
    - `rank`, `spectrum`, `pooled`, `key`, `dtype`: as in `MatrixSensing`.
    - `rule`: the map from a batch to a step (`Unbiased()` by default, or `Shrunk(eta)`, `Printed(eta)`).
    - `radius`: samples with |U'x|^2 above it are left out (the paper's R).

    A step costs m*d normals and O(m d^2) operations: no shorter law is known for xx'.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.sensing.quadratic_net import QuadraticNet, Shrunk
    >>> from undertow.sensing.laws import two_point
    >>> net = QuadraticNet(8, m=4000, law=two_point(1.0, 5.0), rule=Shrunk(0.1))
    >>> run = ut.descend(net, net.start(1e-3), step_size=0.1, steps=100, key=0, seeds=4,
    ...                  observe={"learnt": net.measure}, progress=False)
    >>> print(bool(jnp.median(run.observed["learnt"]["to_invariant"][:, -1]) < 0.15))
    True
    """

    problem: SensingLoss
    """The loss of the matrix UU', whose gradient is the mean of `Unbiased`."""
    sensing: MatrixSensing
    rule: AbstractRule
    radius: float

    def __init__(
        self,
        d: int,
        m: int,
        law: LawLike,
        *,
        rank: int | None = None,
        spectrum: Numbers | None = None,
        pooled: bool = False,
        rule: object = None,
        radius: float | None = None,
        key: KeyLike | None = None,
        dtype: DTypeLike | None = None,
    ):
        if rule is not None and not isinstance(rule, AbstractRule):
            raise TypeError(f"`QuadraticNet(rule={rule!r})`: give a rule, such as `Shrunk(0.1)`.")
        if radius is not None:
            validate.finite_number("QuadraticNet", "radius", radius, positive=True)
        self.sensing = MatrixSensing(d, m, law, rank=rank, spectrum=spectrum, pooled=pooled, key=key, dtype=dtype)
        self.problem = self.sensing.problem
        self.rule = Unbiased() if rule is None else rule
        self.radius = np.inf if radius is None else radius

    @property
    def law(self) -> AbstractLaw:
        """The law of the spurious neurons' weights."""
        return self.sensing.law

    def start(self, alpha: float) -> Float[Array, "d d"]:
        """Return U = alpha I, so that UU' = alpha^2 I."""
        return self.sensing.start(alpha)

    def measure(self, params: Float[Array, "d r"]) -> dict[str, Array]:
        """Return the learnt parts, as `MatrixSensing.measure`."""
        return self.sensing.measure(params)

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        m, dtype = self.sensing.m, self.sensing.truth.dtype
        which, inputs = jax.random.split(key)
        x = jax.random.normal(inputs, (count, m, self.sensing.truth.shape[0]), dtype)
        each = m if self.sensing.pooled else 1
        sizes = self.law.draw(which, count * each).astype(dtype).reshape(count, each, self.law.size)
        return x, sizes

    def gradient(self, params: Float[Array, "d r"], slice: PyTree) -> Float[Array, "d r"]:
        return self.rule(params, self.batch(params, *slice))

    def batch(self, params: Float[Array, "d r"], x: Float[Array, "m d"], sizes: Float[Array, "n k"]) -> Batch:
        """Return the statistics of inputs x and spurious weights, with one row for all inputs (n = 1) or one each."""
        truth, directions = self.sensing.truth, self.problem.directions
        hidden = jnp.sum((x @ params) ** 2, axis=1)
        y = (x @ truth) ** 2 @ self.sensing.spectrum + jnp.sum((x @ directions) ** 2 * sizes, axis=1)
        residual = jnp.where(hidden <= self.radius, hidden - y, 0)
        g = (x * residual[:, None]).T @ x / x.shape[0]
        target = self.problem.signal + self.problem.spurious(jnp.mean(sizes, axis=0))
        size = spectral_norm(target, SQUARINGS) if self.rule.uses_norm else jnp.zeros((), g.dtype)
        return Batch(g, jnp.sum(params**2) - jnp.mean(y), size)

    def covariance(self, params: Float[Array, "d r"]) -> Operator:
        """Return the exact covariance of a draw with the rule `Unbiased` and without a radius, by Wick's theorem.

        Along V a sample is <g, V> = 1/2 [(h(D) + tr D) h(S) + tr(S) h(UU')] with S = (VU' + UV')/2 and h(B) =
        x'Bx - tr B, and E h(A)h(B) = 2 tr AB, E h(A)h(B)h(C) = 8 tr ABC, of four the sum over pairs and cycles.
        """
        if not isinstance(self.rule, Unbiased) or np.isfinite(self.radius):
            raise ValueError(
                "`QuadraticNet.covariance`: known in closed form only for `rule=Unbiased()` without a radius; "
                "estimate it from draws."
            )
        product = params @ params.T
        mean = self.problem.mean_residual(params)
        values, vectors = jnp.linalg.eigh(self.law.covariance().astype(mean.dtype))
        roots = jnp.sqrt(jnp.maximum(values, 0))[None] * vectors
        swings = [self.problem.spurious(column) for column in roots.T]
        across = _symmetric(16 * mean @ product + 4 * jnp.trace(mean) * product)
        m, eye = self.sensing.m, jnp.eye(mean.shape[0], dtype=mean.dtype)

        def inside(s: Array) -> Array:
            """Return the covariance of the matrix 1/2 (G - t I), applied to a symmetric matrix."""
            between = sum((jnp.sum(swing * s) * swing for swing in swings), jnp.zeros_like(s))
            moment = sum((_fourth(swing, s) for swing in swings), _fourth(mean, s))
            trace = jnp.trace(s)
            mixed = (jnp.sum(across * s) * eye + trace * across) / 2 + 2 * jnp.sum(product**2) * trace * eye
            within = moment + mixed / 4 - jnp.sum(mean * s) * mean
            return within / m if self.sensing.pooled else (within - between) / m + between

        def matvec(vector: Array) -> Array:
            return inside(_symmetric(vector @ params.T)) @ params

        def sqrt_mv(normals: Array) -> Array:
            size = mean.size
            dense = jax.vmap(lambda e: inside(_symmetric(e.reshape(mean.shape))).ravel())(
                jnp.eye(size, dtype=mean.dtype)
            )
            squares, axes = jnp.linalg.eigh(_symmetric(dense))
            return (axes @ (jnp.sqrt(jnp.maximum(squares, 0)) * normals.ravel())).reshape(mean.shape) @ params

        return Operator(matvec, sqrt_mv, jax.ShapeDtypeStruct(mean.shape, mean.dtype), like=params)

    def check(self, params: PyTree) -> None:
        validate.params_of_floats("QuadraticNet", params)
        d = self.sensing.truth.shape[0]
        if not hasattr(params, "ndim") or params.ndim != 2 or params.shape[0] != d:
            raise ValueError(f"`QuadraticNet`: params are a matrix U with {d} rows; see `.start(alpha)`.")


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _fourth(d: Array, s: Array) -> Array:
    """Return 1/4 of the gradient of E[(x'Dx)^2 h(S)^2]/2 in S, for a residual D or its variation over environments."""
    t = jnp.trace(d)
    cycles = 16 * (d @ d @ s + s @ d @ d + d @ s @ d)
    return (4 * jnp.sum(d * d) * s + 8 * jnp.sum(d * s) * d + cycles + 8 * t * (d @ s + s @ d) + 2 * t**2 * s) / 4
