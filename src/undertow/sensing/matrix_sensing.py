"""Matrix sensing in environments: stochastic gradients with the exact law of fresh Gaussian measurements.

    y = <X, A* + A(e)>,  A* = U* diag(spectrum) U*',  A(e) = V* S(e) V*',  loss 1/(4m) sum_i (<X_i, UU'> - y_i)^2

A step depends on its batch only through G = 1/m sum_i <X_i, M> X_i, M = UU' - A* - A(e). For Gaussian X with covariance
C the law of G given M is known: the part along CM is a chi-square, the rest one Gaussian matrix of a random length. A
step therefore costs one draw of X for any m, and no measurements are drawn.
"""

import warnings
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._arrays import finite_numbers
from undertow._calls import checked_call
from undertow._validate import KeyLike
from undertow.covariance import Operator
from undertow.noise.base import AbstractNoise
from undertow.sensing.ensembles import AbstractEnsemble, as_ensemble
from undertow.sensing.laws import AbstractLaw, LawLike, Numbers, Table, as_law
from undertow.sensing.loss import SensingLoss, product, pull

__all__ = ["STABLE", "MatrixSensing"]

STABLE = 0.9
"""The measured bound on step_size * max|s| above which runs diverge; above 1 the factor 1 + eta s changes its sign."""


class MatrixSensing(AbstractNoise):
    """SGD on fresh Gaussian measurements of a matrix with an invariant and a spurious part: HeteroSGD, or pooled.

    **Arguments:**

    - `d`: the size of the matrices; `m`: the number of measurements per step.
    - `law`: the law of the spurious signal S(e), with one number for each of its directions (the diagonal); with
      `spurious_rank` k and k (k + 1)/2 numbers also the entries above the diagonal, row by row.
    - `rank`, `spectrum`: those of the invariant signal A* (ones by default).
    - `pooled=True`: every measurement draws its own environment, instead of one environment per step.
    - `ensemble`: "goe" for symmetric X (diagonal N(0,1), off-diagonal N(0,1/2); the same as full X symmetrised in the
      step), "full" for N(0,1) entries without symmetrisation, or any Gaussian one (`undertow.sensing.ensembles`).
    - `key`: draws random subspaces for both signals (None: coordinate axes, orthogonal); `dtype`: the type of numbers.

    A step of `descend` is U - step_size G U, the update (3) of the paper with the paper's eta. U has any number of
    columns; few columns make the products cheap. `undertow.sensing.measurements.FreshMeasurements` is the same noise
    computed from drawn measurements.

    >>> import jax
    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> sensing = ut.MatrixSensing(20, m=8000, law=two_point(1.0, 8.0))
    >>> run = ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=200, key=0, seeds=8,
    ...                  observe={"learnt": sensing.measure}, progress=False)
    >>> learnt = {name: float(jax.numpy.median(x[:, -1])) for name, x in run.observed["learnt"].items()}
    >>> print(learnt["true"] > 0.9, learnt["spurious"] < 0.01)
    True True
    """

    problem: SensingLoss
    truth: Float[Array, "d r"]
    """U*, with orthonormal columns."""
    spectrum: Float[Array, " r"]
    gram_root: Float[Array, "p p"]
    """L with LL' the Gram matrix of the spurious parts."""
    m: int = eqx.field(static=True)
    pooled: bool = eqx.field(static=True)

    @checked_call("MatrixSensing")
    def __init__(
        self,
        d: int,
        m: int,
        law: LawLike,
        *,
        rank: int | None = None,
        spectrum: Numbers | None = None,
        spurious_rank: int | None = None,
        pooled: bool = False,
        ensemble: Literal["goe", "full"] | AbstractEnsemble = "goe",
        key: KeyLike | None = None,
        dtype: DTypeLike | None = None,
    ):
        d = validate.positive_integer("MatrixSensing", "d", d)
        self.m = validate.positive_integer("MatrixSensing", "m", m)
        law = as_law("MatrixSensing", law)
        pooled = validate.flag("MatrixSensing", "pooled", pooled)
        dtype = _floating(dtype)
        given = None if spectrum is None else _spectrum(spectrum)
        rank = (1 if given is None else len(given)) if rank is None else rank
        rank = validate.positive_integer("MatrixSensing", "rank", rank)
        other = law.size if spurious_rank is None else spurious_rank
        other = validate.positive_integer("MatrixSensing", "spurious_rank", other)
        if law.size not in (other, other * (other + 1) // 2):
            raise ValueError(
                f"`MatrixSensing(spurious_rank={other})`: the law has {law.size} numbers; give {other} (the diagonal) "
                f"or {other * (other + 1) // 2} (the diagonal and the entries above it)."
            )
        values = jax.device_put(np.ones(rank, dtype) if given is None else np.asarray(given, dtype))
        if values.shape != (rank,):
            shown = validate.shown(spectrum)
            raise ValueError(
                f"`MatrixSensing(spectrum={shown})`: give {rank} numbers for `spectrum`, as many as the rank."
            )
        if max(rank, other) > d or (key is None and rank + other > d):
            raise ValueError(
                f"`MatrixSensing(d={d})`: the invariant signal has rank {rank}, the spurious one {other}; they do "
                f"not fit into {d} dimensions: give a larger `d`."
            )
        ensemble = as_ensemble("MatrixSensing", ensemble)
        ensemble.check(d)
        self.truth, directions = _subspaces(d, rank, other, key, dtype)
        self.spectrum = values
        self.problem = SensingLoss(_signal(self.truth, values), directions, law, ensemble)
        self.gram_root = _gram_root(self.problem)
        if not np.isfinite(np.asarray(self.gram_root)).all():
            raise ValueError(
                "`MatrixSensing(ensemble=...)`: these measurements vanish on a spurious direction; give an ensemble "
                "whose covariance is positive definite there."
            )
        self.pooled = pooled

    @property
    def law(self) -> AbstractLaw:
        """The law of the spurious signal."""
        return self.problem.law

    @property
    def ensemble(self) -> AbstractEnsemble:
        """The ensemble of the measurements."""
        return self.problem.ensemble

    @property
    def overlap(self) -> Float[Array, ""]:
        """The largest cosine between an invariant and a spurious direction (epsilon_1 of the paper)."""
        return jnp.linalg.norm(self.truth.T @ self.problem.directions, ord=2)

    def start(self, alpha: float, *, columns: int | None = None, signed: bool = False) -> PyTree:
        """Return the paper's small start U = alpha I, or one with fewer `columns`; `signed` for UU' - VV'.

        Fewer than d columns are rotated by a fixed random rotation, so that each column has a part in every direction.
        """
        validate.finite_number("MatrixSensing.start", "alpha", alpha, positive=True)
        signed = validate.flag("MatrixSensing.start", "signed", signed)
        d, dtype = self.truth.shape[0], self.truth.dtype
        frame = np.eye(d, dtype=dtype)
        columns = d if columns is None else validate.positive_integer("MatrixSensing.start", "columns", columns)
        if columns != d:
            if columns > d:
                raise ValueError(
                    f"`MatrixSensing.start(columns={columns})`: give at most {d}, the size of the matrices."
                )
            frame = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (d, columns), dtype))[0] * jnp.sqrt(
                jnp.asarray(d / columns, dtype)
            )
        start = jax.device_put(np.asarray(alpha * frame, dtype))
        return {"U": start, "V": start} if signed else start

    def measure(self, params: PyTree) -> dict[str, Array]:
        """Return the learnt true and spurious parts, the rest, and the distances to both solutions.

        `true` and `spurious` are means of diag(U*'UU'U*)/spectrum and diag(V*'UU'V*); `rest` is the norm of the part
        outside both subspaces; `to_invariant` is |UU' - A*|, `to_mean` is |UU' - A* - E A(e)|.
        """
        self._check_params("MatrixSensing.measure", params)
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
        """Return the chi-square of the measurements of every environment of a table, and normals in the span."""
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
        """Return G for one environment: (c/m) CM + sqrt(c)/m (s Z - <Z, M> CM/s), s^2 = <M, CM>."""
        target = self.problem.residual(params) - self.problem.spurious(sizes)
        moved = self.ensemble.apply(target)
        length = _length(target, moved)
        inside = jnp.sum(z * target) / length
        root = jnp.sqrt(square)
        return ((square - root * inside) * moved + root * length * z) / self.m

    def _pooled(self, params: PyTree, z: Array, drawn: tuple[Array, Array]) -> Array:
        """Return G for measurements with an environment each: all M lie in the span of the spurious parts and a matrix.

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
            # matrix products, because XLA 0.10.2 on CPUs miscompiles sums of products beyond 2,048 vmapped draws
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
        """Return the covariance of one draw: (E<M, CM> C + E CM (x) CM)/m, plus the variance between environments."""
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
        self._check_params("MatrixSensing", params)

    def _check_params(self, function: str, params: PyTree) -> None:
        validate.params_of_floats(function, params)
        d, outline = self.truth.shape[0], trees.outline(params)
        if outline != "*" and not (isinstance(params, dict) and set(params) == {"U", "V"}):
            raise ValueError(f'`{function}`: `params` are {outline}; give a matrix U, or a dict with "U" and "V".')
        for leaf in jax.tree.leaves(params):
            if leaf.ndim != 2 or leaf.shape[0] != d:
                raise ValueError(
                    f"`{function}`: `params` have shape {leaf.shape}; give a matrix U with {d} rows, or a dict of U "
                    "and V, "
                    "as `.start(alpha)` does."
                )

    def check_step_size(self, step_size: float) -> None:
        """Warn where runs are likely to diverge: one environment per step needs step_size * max|s| < 0.9."""
        if self.pooled:
            return
        largest = self.law.largest()
        if step_size * largest > STABLE * (1 + 1e-6):
            warnings.warn(
                f"`MatrixSensing`: step_size * max|s| = {step_size:g} * {largest:g} = {step_size * largest:.2g}; above "
                f"about {STABLE} runs diverge. Take a step size below {STABLE / largest:.2g}.",
                UserWarning,
                stacklevel=5,
            )


def _spectrum(spectrum: Numbers) -> np.ndarray:
    """Return the eigenvalues of the signal: finite numbers, negative ones for UU' - VV', none of them 0."""
    values = finite_numbers("MatrixSensing", "spectrum", spectrum)
    if (values == 0).any():
        raise ValueError(
            f"`MatrixSensing(spectrum={validate.shown(spectrum)})`: `spectrum` has 0; give numbers other than 0, as "
            "many as "
            "the rank."
        )
    return values


def _floating(dtype: DTypeLike | None) -> DTypeLike:
    """Return a floating-point type; None is the default of JAX."""
    try:
        known = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    except TypeError:
        known = None
    if known is None or not jnp.issubdtype(known, jnp.floating):
        raise TypeError(
            f"`MatrixSensing(dtype={validate.shown(dtype)})`: `dtype` must be a floating-point type, such as "
            "jnp.float32."
        )
    return known


def _length(matrix: Array, moved: Array) -> Array:
    """Return sqrt(<M, C M>), bounded away from zero."""
    return jnp.sqrt(jnp.maximum(jnp.vdot(matrix, moved), jnp.finfo(matrix.dtype).tiny))


def _diagonal(directions: Array, matrix: Array) -> Array:
    """Return the diagonal of V'MV."""
    return jnp.sum(directions * (matrix @ directions), axis=0)


def _subspaces(d: int, rank: int, other: int, key: KeyLike | None, dtype: DTypeLike) -> tuple[Array, Array]:
    """Return orthonormal U* and V*: coordinate axes, or random subspaces that need not be orthogonal to each other."""
    if key is None:
        eye = np.eye(d, dtype=dtype)
        return jax.device_put(eye[:, :rank]), jax.device_put(eye[:, rank : rank + other])
    first, second = jax.random.split(validate.as_key("MatrixSensing", key))
    return _subspace(first, d, rank, dtype), _subspace(second, d, other, dtype)


# compiled together, because each single operation would be compiled as a program of its own


@partial(jax.jit, static_argnums=(1, 2, 3))
def _subspace(key: Array, d: int, rank: int, dtype: DTypeLike) -> Array:
    return jnp.linalg.qr(jax.random.normal(key, (d, rank), dtype))[0]


@jax.jit
def _signal(truth: Array, spectrum: Array) -> Array:
    return (truth * spectrum[None]) @ truth.T


@eqx.filter_jit
def _gram_root(loss: SensingLoss) -> Array:
    return jnp.linalg.cholesky(loss.gram)


_multinomial = jax.jit(jax.random.multinomial)  # a long program, compiled once for calls outside `jit`


def _chi_square(key: Array, degrees: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return 2 * jax.random.gamma(key, degrees / 2, shape, dtype)
