"""Matrix sensing in environments: stochastic gradients with the exact law of fresh Gaussian measurements, without them.

    y = <X, A* + A(e)>,  A* = U* diag(spectrum) U*',  A(e) = V* S(e) V*',  loss 1/(4m) sum_i (<X_i, UU'> - y_i)^2

A batch acts through G = 1/m sum_i <X_i, M> X_i alone, M = UU' - A* - A(e). For Gaussian X with covariance C its law is
known given M: the part along CM is a chi-square, the rest one Gaussian matrix of a random length. So a step costs one
draw of X, whatever m.
"""

import warnings
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.covariance import Operator
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem
from undertow.sensing.ensembles import AbstractEnsemble, as_ensemble
from undertow.sensing.laws import AbstractLaw, Table, as_law

__all__ = ["STABLE", "MatrixSensing", "SensingLoss"]

STABLE = 0.9
"""step_size * max|s| below this keeps runs from diverging (measured; beyond 1 + eta s changes sign)."""


class SensingLoss(AbstractProblem):
    """The population loss of matrix sensing, in closed form: 1/4 E_e <M_e, C M_e>, M_e = UU' - A* - A(e).

    Params are U, or {"U": U, "V": V} for UU' - VV'. C is the identity for isotropic measurements, and the gradient
    C(UU' - A* - E A(e)) U.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> task = ut.MatrixSensing(4, m=10, law=two_point(0.5, 2.0)).problem
    >>> print(task.loss(jnp.zeros((4, 4))))
    1.3125
    """

    signal: Float[Array, "d d"]
    """A*."""
    directions: Float[Array, "d k"]
    """V*, orthonormal."""
    law: AbstractLaw
    ensemble: AbstractEnsemble

    def residual(self, params: PyTree) -> Float[Array, "d d"]:
        """UU' (- VV') - A*."""
        return product(params) - self.signal

    def mean_residual(self, params: PyTree) -> Float[Array, "d d"]:
        """UU' (- VV') - A* - E A(e)."""
        return self.residual(params) - self.spurious(self.law.mean())

    def spurious(self, sizes: Float[Array, " p"]) -> Float[Array, "d d"]:
        """V* S V*', S = diag(sizes), or the symmetric matrix with this diagonal, then these entries above it."""
        v, sizes = self.directions, sizes.astype(self.directions.dtype)
        if sizes.shape[0] == v.shape[1]:
            return (v * sizes[None]) @ v.T
        return v @ jnp.tensordot(sizes, self._parts, axes=1) @ v.T

    def along(self, matrix: Float[Array, "d d"]) -> Float[Array, " p"]:
        """The adjoint of `spurious`: the inner product of a matrix with the part of each size."""
        v = self.directions
        if self.law.size == v.shape[1]:
            return jnp.sum(v * (matrix @ v), axis=0)
        return jnp.tensordot(self._parts, v.T @ matrix @ v, axes=2)

    @property
    def _parts(self) -> Float[Array, "p k k"]:
        return jnp.asarray(_symmetric_basis(self.directions.shape[1]), self.directions.dtype)

    @property
    def gram(self) -> Float[Array, "p p"]:
        """<B_a, C B_b> of the parts B_a of each size."""
        each = jnp.eye(self.law.size, dtype=self.directions.dtype)
        return jax.vmap(lambda one: self.along(self.ensemble.apply(self.spurious(one))))(each)

    def loss(self, params: PyTree) -> Float[Array, ""]:
        mean = self.mean_residual(params)
        return (jnp.sum(mean * self.ensemble.apply(mean)) + self._spread().astype(mean.dtype)) / 4

    def _spread(self) -> Float[Array, ""]:
        """E <A(e) - E A(e), C (A(e) - E A(e))>."""
        return jnp.sum(self.gram * self.law.covariance().astype(self.directions.dtype))

    def gradient(self, params: PyTree) -> PyTree:
        return pull(self.ensemble.apply(self.mean_residual(params)), params)


def _symmetric_basis(k: int) -> np.ndarray:
    """Units of symmetric k x k matrices: the k of the diagonal, then those above it, row by row."""
    above, right = np.triu_indices(k, 1)
    rows, columns = np.concatenate([np.arange(k), above]), np.concatenate([np.arange(k), right])
    units = np.zeros((len(rows), k, k))
    units[np.arange(len(rows)), rows, columns] = 1
    units[np.arange(len(rows)), columns, rows] = 1
    return units


def product(params: PyTree) -> Float[Array, "d d"]:
    """UU', or UU' - VV'."""
    if isinstance(params, dict):
        return params["U"] @ params["U"].T - params["V"] @ params["V"].T
    return params @ params.T


def pull(g: Array, params: PyTree) -> PyTree:
    """The gradient in params of 1/2 <G, UU' - VV'> with symmetric G held: G U and -G V."""
    if isinstance(params, dict):
        return {"U": g @ params["U"], "V": -g @ params["V"]}
    return g @ params


class MatrixSensing(AbstractNoise):
    """SGD on fresh Gaussian measurements of a matrix with an invariant and a spurious part: HeteroSGD, or pooled.

    **Arguments:**

    - `d`: the size of the matrices; `m`: measurements a step.
    - `law` of the spurious signal S(e): one number for each of its directions (the diagonal); with `spurious_rank` k
      and k (k + 1)/2 numbers also the entries above the diagonal, row by row.
    - `rank`, `spectrum` of the invariant signal A* (ones by default).
    - `pooled=True`: every measurement draws its own environment instead of one a step.
    - `ensemble`: "goe" for symmetric X (diagonal N(0,1), off-diagonal N(0,1/2); the same as full X symmetrised in the
      step), "full" for N(0,1) entries used as they are, or any Gaussian one (`undertow.sensing.ensembles`).
    - `key` draws random subspaces for both signals (None: coordinate axes, orthogonal).

    A step of `descend` is U - step_size G U, the paper's update with its own eta. U has any number of columns; a few
    make the products cheap. `undertow.sensing.measurements.FreshMeasurements` is the same noise from measurements that
    are really drawn.

    >>> import jax
    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
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
    gram_root: Float[Array, "p p"]
    """L with LL' = the Gram matrix of the spurious parts."""
    m: int = eqx.field(static=True)
    pooled: bool = eqx.field(static=True)

    def __init__(
        self,
        d: int,
        m: int,
        law: AbstractLaw | Any,
        *,
        rank: int | None = None,
        spectrum: Any = None,
        spurious_rank: int | None = None,
        pooled: bool = False,
        ensemble: Literal["goe", "full"] | AbstractEnsemble = "goe",
        key: KeyLike | None = None,
        dtype: Any = None,
    ):
        d = validate.positive_integer("MatrixSensing", "d", d)
        self.m = validate.positive_integer("MatrixSensing", "m", m)
        law = as_law("MatrixSensing", law)
        rank = (1 if spectrum is None else int(np.size(spectrum))) if rank is None else rank
        rank = validate.positive_integer("MatrixSensing", "rank", rank)
        other = law.size if spurious_rank is None else spurious_rank
        other = validate.positive_integer("MatrixSensing", "spurious_rank", other)
        if law.size not in (other, other * (other + 1) // 2):
            raise ValueError(
                f"`MatrixSensing(spurious_rank={other})`: the law has {law.size} numbers; give {other} (the diagonal) "
                f"or {other * (other + 1) // 2} (and the entries above it)."
            )
        dtype = jnp.result_type(float) if dtype is None else dtype
        values = jnp.ones(rank, dtype) if spectrum is None else jnp.atleast_1d(jnp.asarray(spectrum, dtype))
        if values.shape != (rank,):
            raise ValueError(f"`MatrixSensing(spectrum=...)`: give {rank} numbers, one for each of the rank.")
        if max(rank, other) > d or (key is None and rank + other > d):
            raise ValueError(
                f"`MatrixSensing(d={d})`: the invariant signal has rank {rank}, the spurious one {other}; they do "
                "not fit beside each other in so few dimensions."
            )
        ensemble = as_ensemble("MatrixSensing", ensemble)
        ensemble.check(d)
        self.truth, directions = _subspaces(d, rank, other, key, dtype)
        self.spectrum = values
        self.problem = SensingLoss(_signal(self.truth, values), directions, law, ensemble)
        self.gram_root = _gram_root(self.problem)
        if not np.isfinite(np.asarray(self.gram_root)).all():
            raise ValueError("`MatrixSensing(ensemble=...)`: these measurements do not see every spurious direction.")
        self.pooled = pooled

    @property
    def law(self) -> AbstractLaw:
        """Of the spurious signal."""
        return self.problem.law

    @property
    def ensemble(self) -> AbstractEnsemble:
        """Of the measurements."""
        return self.problem.ensemble

    @property
    def overlap(self) -> Float[Array, ""]:
        """The largest cosine between an invariant and a spurious direction (epsilon_1 of the paper)."""
        return jnp.linalg.norm(self.truth.T @ self.problem.directions, ord=2)

    def start(self, alpha: float, *, columns: int | None = None, signed: bool = False) -> PyTree:
        """U = alpha I, the paper's small start, or its first `columns`; `signed` for UU' - VV'.

        Columns are turned by a fixed random rotation when they are fewer than d: each then sees every direction.
        """
        validate.finite_number("MatrixSensing.start", "alpha", alpha, least=np.finfo(float).tiny)
        d, dtype = self.truth.shape[0], self.truth.dtype
        frame = jnp.eye(d, dtype=dtype)
        if columns is not None and columns != d:
            columns = validate.positive_integer("MatrixSensing.start", "columns", columns)
            if columns > d:
                raise ValueError(f"`MatrixSensing.start(columns={columns})`: at most {d}, the size of the matrices.")
            frame = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (d, columns), dtype))[0] * jnp.sqrt(
                jnp.asarray(d / columns, dtype)
            )
        return {"U": alpha * frame, "V": alpha * frame} if signed else alpha * frame

    def measure(self, params: PyTree) -> dict[str, Array]:
        """What has been learnt: the true and the spurious part, the rest, and the distances to both solutions.

        `true` and `spurious` are means of diag(U*'UU'U*)/spectrum and diag(V*'UU'V*); `rest` is the norm of what lies
        in neither subspace; `to_invariant` |UU' - A*|, `to_mean` |UU' - A* - E A(e)|.
        """
        learnt = product(params)
        v = self.problem.directions
        residual = learnt - self.problem.signal
        outside = jnp.eye(learnt.shape[0], dtype=learnt.dtype) - self.truth @ self.truth.T - v @ v.T
        return {
            "true": jnp.mean(_diagonal(self.truth, learnt) / self.spectrum),
            "spurious": jnp.mean(_diagonal(v, learnt)),
            "rest": jnp.sqrt(jnp.maximum(jnp.sum(outside * (learnt @ outside)), 0)),
            "to_invariant": jnp.linalg.norm(residual),
            "to_mean": jnp.linalg.norm(residual - self.problem.spurious(self.law.mean())),
        }

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        d, p, dtype = self.truth.shape[0], self.law.size, self.truth.dtype
        which, normal, along = jax.random.split(key, 3)
        normals = jax.random.normal(normal, (count, *self.ensemble.normal_structure(d)), dtype)
        if not self.pooled:
            sizes = self.law.draw(which, count).astype(dtype)
            return normals, sizes, _chi_square(along, self.m, (count,), dtype)
        if isinstance(self.law, Table):
            return normals, self._shares(which, along, count)
        sizes = self.law.draw(which, count * self.m).astype(dtype).reshape(count, self.m, p)
        return normals, (sizes, jax.random.normal(along, (count, self.m, p + 1), dtype))

    def _shares(self, which: Array, along: Array, count: int) -> PyTree:
        """For every environment of a table: how many measurements it has, their chi-square, and normals in the span."""
        assert isinstance(self.law, Table)
        environments, dtype = len(self.law.probabilities), self.truth.dtype
        numbers = _multinomial(
            which, jnp.asarray(self.m), jnp.broadcast_to(self.law.probabilities, (count, environments))
        )
        first, second = jax.random.split(along)
        squares = 2 * jax.random.gamma(first, jnp.maximum(numbers, 0.5).astype(dtype) / 2)
        squares = jnp.where(numbers > 0, squares, 0).astype(dtype)
        return squares, jax.random.normal(second, (count, environments, self.law.size + 1), dtype)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        z, rest = self.ensemble.sqrt_mv(slice[0], self.truth.shape[0]), slice[1:]
        g = self._pooled(params, z, rest[0]) if self.pooled else self._single(params, z, *rest)
        return pull(g, params)

    def _single(self, params: PyTree, z: Array, sizes: Array, square: Array) -> Array:
        """One environment: (c/m) CM + sqrt(c)/m (s Z - <Z, M> CM/s), s^2 = <M, CM>."""
        target = self.problem.residual(params) - self.problem.spurious(sizes)
        moved = self.ensemble.apply(target)
        length = _length(target, moved)
        inside = jnp.sum(z * target) / length
        root = jnp.sqrt(square)
        return ((square - root * inside) * moved + root * length * z) / self.m

    def _pooled(self, params: PyTree, z: Array, drawn: tuple[Array, Array]) -> Array:
        """Every measurement its own environment: all M lie in the span of the spurious parts and one matrix.

        In a basis of that span that is orthonormal for <., C .>, the numbers <X_i, basis> are independent normals.
        """
        task, root = self.problem, self.gram_root
        solve = lambda matrix, x: jax.scipy.linalg.solve_triangular(root, x, trans=matrix, lower=True)
        base = task.residual(params)
        size = solve(1, solve(0, task.along(self.ensemble.apply(base))))
        across = base - task.spurious(size)
        moved = self.ensemble.apply(across)
        length = _length(across, moved)
        unit, moved = across / length, moved / length

        def coordinates(sizes: Array) -> Array:
            inside = (size[None] - sizes) @ root
            return jnp.concatenate([inside, jnp.broadcast_to(length, (sizes.shape[0], 1))], axis=1)

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
        spurious = solve(1, inside[:-1] - outside * solve(0, task.along(z)))
        rest = inside[-1] - outside * jnp.sum(z * unit)
        return (self.ensemble.apply(task.spurious(spurious)) + rest * moved + outside * z) / self.m

    def covariance(self, params: PyTree) -> Operator:
        """Of one draw: (E<M, CM> C + E CM (x) CM)/m given the environment, plus what varies between environments."""
        mean = self.problem.mean_residual(params)
        moved = self.ensemble.apply(mean)
        spread = self.law.covariance().astype(mean.dtype)
        power = (jnp.sum(mean * moved) + jnp.sum(self.problem.gram * spread)) / self.m
        between = (2 if self.pooled else 1) / self.m + (0 if self.pooled else 1)
        values, vectors = jnp.linalg.eigh(spread)
        roots = jnp.sqrt(between * jnp.maximum(values, 0))[None] * vectors

        def push(g: Array) -> PyTree:
            return pull(g, params)

        def varying(k: Array) -> Array:
            return self.ensemble.apply(self.problem.spurious(roots @ k))

        def sqrt_mv(normals: tuple[Array, Array, Array]) -> PyTree:
            z, one, k = normals
            flat = jnp.sqrt(power) * self.ensemble.sqrt_mv(z, mean.shape[0])
            return push(flat + one[0] / jnp.sqrt(jnp.asarray(self.m, mean.dtype)) * moved + varying(k))

        def matvec(vector: PyTree) -> PyTree:
            (pulled,) = jax.linear_transpose(push, mean)(vector)
            image = self.ensemble.transform(pulled)
            flat = power * image + jnp.sum(moved * pulled) / self.m * moved
            return push(flat + varying(roots.T @ self.problem.along(image)))

        d, p, dtype = mean.shape[0], self.law.size, mean.dtype
        shape = lambda *s: jax.ShapeDtypeStruct(s, dtype)
        return Operator(matvec, sqrt_mv, (shape(*self.ensemble.normal_structure(d)), shape(1), shape(p)), like=params)

    def check(self, params: PyTree) -> None:
        validate.params_of_floats("MatrixSensing", params)
        leaves = jax.tree.leaves(params)
        d = self.truth.shape[0]
        if any(leaf.ndim != 2 or leaf.shape[0] != d for leaf in leaves):
            raise ValueError(f"`MatrixSensing`: params are U with {d} rows, or a dict of U and V; see `.start(alpha)`.")
        if isinstance(params, dict) and set(params) != {"U", "V"}:
            raise ValueError('`MatrixSensing`: params are a matrix U, or a dict with "U" and "V".')

    def check_step_size(self, step_size: float) -> None:
        """Warns where runs are about to diverge: one environment a step needs step_size * max|s| < 0.9."""
        if self.pooled:
            return
        largest = self.law.largest()
        if step_size * largest > STABLE * (1 + 1e-6):
            warnings.warn(
                f"`MatrixSensing`: step_size * max|s| = {step_size:g} * {largest:g} = {step_size * largest:.2g}; above "
                f"about {STABLE} runs diverge. Take a step size below {STABLE / largest:.2g}.",
                UserWarning,
                stacklevel=4,
            )


def _length(matrix: Array, moved: Array) -> Array:
    """sqrt(<M, C M>), never zero."""
    return jnp.sqrt(jnp.maximum(jnp.vdot(matrix, moved), jnp.finfo(matrix.dtype).tiny))


def _diagonal(directions: Array, matrix: Array) -> Array:
    """The diagonal of V'MV."""
    return jnp.sum(directions * (matrix @ directions), axis=0)


def _subspaces(d: int, rank: int, other: int, key: Any, dtype: Any) -> tuple[Array, Array]:
    """Orthonormal U* and V*: coordinate axes, or random subspaces that need not be orthogonal to each other."""
    if key is None:
        eye = np.eye(d, dtype=dtype)
        return jax.device_put(eye[:, :rank]), jax.device_put(eye[:, rank : rank + other])
    first, second = jax.random.split(validate.as_key("MatrixSensing", key))
    return _subspace(first, d, rank, dtype), _subspace(second, d, other, dtype)


# by itself each operation would be a program of its own


@partial(jax.jit, static_argnums=(1, 2, 3))
def _subspace(key: Array, d: int, rank: int, dtype: Any) -> Array:
    return jnp.linalg.qr(jax.random.normal(key, (d, rank), dtype))[0]


@jax.jit
def _signal(truth: Array, spectrum: Array) -> Array:
    return (truth * spectrum[None]) @ truth.T


@eqx.filter_jit
def _gram_root(loss: SensingLoss) -> Array:
    return jnp.linalg.cholesky(loss.gram)


_multinomial = jax.jit(jax.random.multinomial)  # a long program: compiled once for those who call it by itself


def _chi_square(key: Array, degrees: int, shape: tuple[int, ...], dtype: Any) -> Array:
    return 2 * jax.random.gamma(key, degrees / 2, shape, dtype)
