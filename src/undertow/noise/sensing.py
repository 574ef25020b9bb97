"""Matrix sensing in environments: stochastic gradients with the exact law of fresh Gaussian measurements, without them.

    y = <X, A* + A(e)>,  A* = U* diag(spectrum) U*',  A(e) = V* diag(s_e) V*',  loss 1/(4m) sum_i (<X_i, UU'> - y_i)^2

A batch acts through G = 1/m sum_i <X_i, M> X_i alone, M = UU' - A* - A(e). For Gaussian X its law is known given M: the
part along M is a chi-square, the rest one Gaussian matrix of a random length. So a step costs one d x d normal draw,
whatever m.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import trees, validate
from undertow.covariance import Operator
from undertow.noise.base import AbstractNoise
from undertow.noise.laws import AbstractLaw, Table, as_law
from undertow.problem import AbstractProblem

__all__ = ["MatrixSensing", "SensingLoss"]

Ensemble = Literal["goe", "full"]


class SensingLoss(AbstractProblem):
    """The population loss of matrix sensing, in closed form: 1/4 E_e |UU' - A* - A(e)|^2 (Frobenius).

    Params are U, or {"U": U, "V": V} for UU' - VV'. The gradient is (UU' - A* - E A(e)) U.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise.laws import two_point
    >>> task = ut.MatrixSensing(4, m=10, law=two_point(0.5, 2.0)).problem
    >>> print(task.loss(jnp.zeros((4, 4))))
    1.3125
    """

    signal: Float[Array, "d d"]
    """A*."""
    directions: Float[Array, "d k"]
    """V*, orthonormal."""
    law: AbstractLaw

    def residual(self, params: PyTree) -> Float[Array, "d d"]:
        """UU' (- VV') - A*."""
        return _product(params) - self.signal

    def mean_residual(self, params: PyTree) -> Float[Array, "d d"]:
        """UU' (- VV') - A* - E A(e)."""
        return self.residual(params) - self.spurious(self.law.mean())

    def spurious(self, sizes: Float[Array, " k"]) -> Float[Array, "d d"]:
        """V* diag(sizes) V*'."""
        return (self.directions * sizes[None].astype(self.directions.dtype)) @ self.directions.T

    def loss(self, params: PyTree) -> Float[Array, ""]:
        mean = self.mean_residual(params)
        return (jnp.sum(mean**2) + jnp.trace(self.law.covariance()).astype(mean.dtype)) / 4

    def gradient(self, params: PyTree) -> PyTree:
        return _pull(self.mean_residual(params), params)


def _product(params: PyTree) -> Array:
    if isinstance(params, dict):
        return params["U"] @ params["U"].T - params["V"] @ params["V"].T
    return params @ params.T


def _inside(directions: Array, matrix: Array) -> Array:
    """The diagonal of V'MV."""
    return jnp.sum(directions * (matrix @ directions), axis=0)


def _pull(g: Array, params: PyTree) -> PyTree:
    """The gradient in params of 1/2 <G, UU' - VV'> with G held: G U and -G V, symmetrised where G is not symmetric."""
    if isinstance(params, dict):
        return {"U": g @ params["U"], "V": -g @ params["V"]}
    return g @ params


class MatrixSensing(AbstractNoise):
    """SGD on fresh Gaussian measurements of a matrix with an invariant and a spurious part: HeteroSGD, or pooled.

    **Arguments:** `d`, the size of the matrices; `m`, measurements a step; `law` of the spurious signal's size (one
    number for each of its directions); `rank`, `spectrum` of the invariant signal A* (ones by default); `pooled=True`
    lets every measurement draw its own environment instead of one a step; `ensemble` "goe" for symmetric X (diagonal
    N(0,1), off-diagonal N(0,1/2); the same as full X symmetrised in the step) or "full" for N(0,1) entries used as they
    are; `key` draws random subspaces for both signals (None: coordinate axes, orthogonal). A step of `descend` is
    U - step_size G U, the paper's update with its own eta.

    >>> import jax
    >>> import undertow as ut
    >>> from undertow.noise.laws import two_point
    >>> sensing = ut.MatrixSensing(20, m=8000, law=two_point(1.0, 8.0))
    >>> run = ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=200, key=0, seeds=8,
    ...                  observe={"seen": sensing.measure}, progress=False)
    >>> seen = {name: float(jax.numpy.median(x[:, -1])) for name, x in run.observed["seen"].items()}
    >>> print(seen["true"] > 0.9, seen["spurious"] < 0.01)
    True True
    """

    problem: SensingLoss
    truth: Float[Array, "d r"]
    """U*, orthonormal."""
    spectrum: Float[Array, " r"]
    m: int = eqx.field(static=True)
    pooled: bool = eqx.field(static=True)
    ensemble: Ensemble = eqx.field(static=True)

    def __init__(
        self,
        d: int,
        m: int,
        law: AbstractLaw | Any,
        *,
        rank: int | None = None,
        spectrum: Any = None,
        pooled: bool = False,
        ensemble: Ensemble = "goe",
        key: Key[Array, ""] | None = None,
        dtype: Any = None,
    ):
        d = validate.positive_integer("MatrixSensing", "d", d)
        self.m = validate.positive_integer("MatrixSensing", "m", m)
        law = as_law("MatrixSensing", law)
        rank = (1 if spectrum is None else int(np.size(spectrum))) if rank is None else rank
        rank = validate.positive_integer("MatrixSensing", "rank", rank)
        dtype = jnp.result_type(float) if dtype is None else dtype
        values = jnp.ones(rank, dtype) if spectrum is None else jnp.atleast_1d(jnp.asarray(spectrum, dtype))
        if values.shape != (rank,):
            raise ValueError(f"`MatrixSensing(spectrum=...)`: give {rank} numbers, one for each of the rank.")
        if max(rank, law.size) > d or (key is None and rank + law.size > d):
            raise ValueError(
                f"`MatrixSensing(d={d})`: the invariant signal has rank {rank}, the spurious one {law.size}; they do "
                "not fit beside each other in so few dimensions."
            )
        if ensemble not in ("goe", "full"):
            raise ValueError(f'`MatrixSensing(ensemble={ensemble!r})`: choose "goe" (or full X symmetrised) or "full".')
        self.truth, directions = _subspaces(d, rank, law.size, key, dtype)
        self.spectrum = values
        signal = (self.truth * values[None]) @ self.truth.T
        self.problem = SensingLoss(signal, directions, law)
        self.pooled = pooled
        self.ensemble = ensemble

    @property
    def law(self) -> AbstractLaw:
        """Of the spurious signal."""
        return self.problem.law

    @property
    def overlap(self) -> Float[Array, ""]:
        """The largest cosine between an invariant and a spurious direction (epsilon_1 of the paper)."""
        return jnp.linalg.norm(self.truth.T @ self.problem.directions, ord=2)

    def start(self, alpha: float, *, signed: bool = False) -> PyTree:
        """U = alpha I, the paper's small start; `signed` for UU' - VV'."""
        validate.finite_number("MatrixSensing.start", "alpha", alpha, least=np.finfo(float).tiny)
        small = alpha * jnp.eye(self.truth.shape[0], dtype=self.truth.dtype)
        return {"U": small, "V": small} if signed else small

    def measure(self, params: PyTree) -> dict[str, Array]:
        """What has been learnt: the true and the spurious part, the rest, and the distances to both solutions.

        `true` and `spurious` are means of diag(U*'UU'U*)/spectrum and diag(V*'UU'V*); `rest` is the norm of what lies
        in neither subspace; `to_invariant` |UU' - A*|, `to_mean` |UU' - A* - E A(e)|.
        """
        product = _product(params)
        v = self.problem.directions
        residual = product - self.problem.signal
        outside = jnp.eye(product.shape[0], dtype=product.dtype) - self.truth @ self.truth.T - v @ v.T
        return {
            "true": jnp.mean(_inside(self.truth, product) / self.spectrum),
            "spurious": jnp.mean(_inside(v, product)),
            "rest": jnp.sqrt(jnp.maximum(jnp.sum(outside * (product @ outside)), 0)),
            "to_invariant": jnp.linalg.norm(residual),
            "to_mean": jnp.linalg.norm(residual - self.problem.spurious(self.law.mean())),
        }

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        d, k, dtype = self.truth.shape[0], self.law.size, self.truth.dtype
        which, normal, along = jax.random.split(key, 3)
        z = jax.random.normal(normal, (count, d, d), dtype)
        if self.ensemble == "goe":
            z = (z + jnp.swapaxes(z, 1, 2)) / 2
        if not self.pooled:
            sizes = self.law.draw(which, count).astype(dtype)
            return z, sizes, _chi_square(along, self.m, (count,), dtype)
        if isinstance(self.law, Table):
            return z, self._shares(which, along, count, k)
        sizes = self.law.draw(which, count * self.m).astype(dtype).reshape(count, self.m, k)
        return z, (sizes, jax.random.normal(along, (count, self.m, k + 1), dtype))

    def _shares(self, which: Array, along: Array, count: int, k: int) -> PyTree:
        """For every environment of a table: how many measurements it has, their chi-square, and normals in the span."""
        assert isinstance(self.law, Table)
        environments, dtype = len(self.law.probabilities), self.truth.dtype
        numbers = jax.random.multinomial(which, self.m, jnp.broadcast_to(self.law.probabilities, (count, environments)))
        first, second = jax.random.split(along)
        squares = 2 * jax.random.gamma(first, jnp.maximum(numbers, 0.5).astype(dtype) / 2)
        squares = jnp.where(numbers > 0, squares, 0).astype(dtype)
        return squares, jax.random.normal(second, (count, environments, k + 1), dtype)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        z, rest = slice[0], slice[1:]
        g = self._pooled(params, z, rest[0]) if self.pooled else self._single(params, z, *rest)
        return _pull(g, params)

    def _single(self, params: PyTree, z: Array, sizes: Array, square: Array) -> Array:
        """One environment: (c/m) M + sqrt(c)/m (|M| Z - <Z, Mhat> M)."""
        target = self.problem.residual(params) - self.problem.spurious(sizes)
        length = jnp.maximum(jnp.linalg.norm(target), jnp.finfo(target.dtype).tiny)
        inside = jnp.sum(z * target) / length
        root = jnp.sqrt(square)
        return ((square - root * inside) * target + root * length * z) / self.m

    def _pooled(self, params: PyTree, z: Array, drawn: tuple[Array, Array]) -> Array:
        """Every measurement its own environment: all M lie in the span of the spurious directions and one matrix."""
        v = self.problem.directions
        base = self.problem.residual(params)
        along = _inside(v, base)
        across = base - self.problem.spurious(along)
        length = jnp.maximum(jnp.linalg.norm(across), jnp.finfo(base.dtype).tiny)
        unit = across / length
        coordinates = lambda sizes: jnp.concatenate(
            [along[None] - sizes, jnp.broadcast_to(length, (sizes.shape[0], 1))], axis=1
        )
        if isinstance(self.law, Table):
            squares, normals = drawn
            mu = coordinates(self.law.values.astype(base.dtype))
            norm = jnp.maximum(jnp.linalg.norm(mu, axis=1), jnp.finfo(base.dtype).tiny)
            hat = mu / norm[:, None]
            sideways = normals - jnp.sum(normals * hat, axis=1)[:, None] * hat
            parts = squares[:, None] * hat + jnp.sqrt(squares)[:, None] * sideways
            # products, not sums of products: XLA 0.10.2 on CPUs miscompiles the latter beyond 2,048 vmapped draws
            inside = norm @ parts
            outside = jnp.sqrt(jnp.vdot(norm**2, squares))
        else:
            sizes, normals = drawn
            weight = jnp.sum(coordinates(sizes) * normals, axis=1)  # <X_i, M_i>
            inside, outside = weight @ normals, jnp.linalg.norm(weight)
        flat = z - self.problem.spurious(_inside(v, z)) - jnp.sum(z * unit) * unit
        return (self.problem.spurious(inside[:-1]) + inside[-1] * unit + outside * flat) / self.m

    def covariance(self, params: PyTree) -> Operator:
        """Of one draw: (E|M|^2 I + E M (x) M)/m given the environment, plus what varies between environments."""
        mean = self.problem.mean_residual(params)
        spread = self.law.covariance().astype(mean.dtype)
        power = (jnp.sum(mean**2) + jnp.trace(spread)) / self.m
        between = (2 if self.pooled else 1) / self.m + (0 if self.pooled else 1)
        values, vectors = jnp.linalg.eigh(spread)
        roots = jnp.sqrt(between * jnp.maximum(values, 0))[None] * vectors

        def push(g: Array) -> PyTree:
            return _pull(g, params)

        def symmetric(g: Array) -> Array:
            return (g + g.T) / 2 if self.ensemble == "goe" else g

        def root(white: tuple[Array, Array, Array]) -> PyTree:
            z, one, k = white
            flat = jnp.sqrt(power) * symmetric(z) + one[0] / jnp.sqrt(jnp.asarray(self.m, mean.dtype)) * mean
            return push(flat + self.problem.spurious(roots @ k))

        def matvec(vector: PyTree) -> PyTree:
            (pulled,) = jax.linear_transpose(push, mean)(vector)
            v = self.problem.directions
            inner = _inside(v, pulled)
            flat = power * symmetric(pulled) + jnp.sum(mean * pulled) / self.m * mean
            return push(flat + self.problem.spurious(roots @ (roots.T @ inner)))

        d, k, dtype = mean.shape[0], self.law.size, mean.dtype
        shape = lambda *s: jax.ShapeDtypeStruct(s, dtype)
        return Operator(matvec, root, (shape(d, d), shape(1), shape(k)), like=params)

    def check(self, params: PyTree) -> None:
        validate.params_of_floats("MatrixSensing", params)
        leaves = jax.tree.leaves(params)
        d = self.truth.shape[0]
        if any(leaf.ndim != 2 or leaf.shape[0] != d for leaf in leaves):
            raise ValueError(f"`MatrixSensing`: params are U with {d} rows, or a dict of U and V; see `.start(alpha)`.")
        if isinstance(params, dict) and set(params) != {"U", "V"}:
            raise ValueError('`MatrixSensing`: params are a matrix U, or a dict with "U" and "V".')


def _subspaces(d: int, rank: int, other: int, key: Any, dtype: Any) -> tuple[Array, Array]:
    """Orthonormal U* and V*: coordinate axes, or random subspaces that need not be orthogonal to each other."""
    if key is None:
        eye = jnp.eye(d, dtype=dtype)
        return eye[:, :rank], eye[:, rank : rank + other]
    first, second = jax.random.split(key)
    draw = lambda k, r: jnp.linalg.qr(jax.random.normal(k, (d, r), dtype))[0]
    return draw(first, rank), draw(second, other)


def _chi_square(key: Array, degrees: int, shape: tuple[int, ...], dtype: Any) -> Array:
    return 2 * jax.random.gamma(key, degrees / 2, shape, dtype)


def explicit_gradient(
    noise: MatrixSensing, params: PyTree, measurements: Float[Array, "m d d"], sizes: Float[Array, "m k"]
) -> PyTree:
    """The same step from measurements that are there: the reference of the exact law, and the way for data."""
    base = noise.problem.residual(params)

    def one(row: tuple[Array, Array]) -> Array:
        x, s = row
        return jnp.sum(x * (base - noise.problem.spurious(s))) * x

    return trees.scale(1 / measurements.shape[0], _pull(jnp.sum(jax.vmap(one)((measurements, sizes)), axis=0), params))
