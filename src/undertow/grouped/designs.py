"""Simulated grouped regression data: nine designs in which children of y bias least squares.

A few causes x_c give y = x_c.w + noise, with the same w in every environment. Children of y, child = a_e y + noise,
predict y well in the training environments and badly in others. The other columns are irrelevant, but correlated with
a cause.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from undertow import _validate as validate

__all__ = ["DESIGNS", "GroupedDesign", "grouped_design"]

FAR = (-1.5, 2.0, 0.0)
"""Strengths of the children in the test environments, beyond those of training."""


@dataclass(frozen=True)
class GroupedDesign:
    """Rows in groups, their invariant coefficients, and test environments."""

    name: str
    X: Float[np.ndarray, "rows d"]
    y: Float[np.ndarray, " rows"]
    groups: Int[np.ndarray, " rows"]
    truth: Float[np.ndarray, " d"]
    """w*, the coefficients that hold in every environment; the intercept is zero."""
    children: Bool[np.ndarray, " d"]
    """A mask of the columns that descend from y."""
    tests: tuple[tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]], ...]
    """X and y of each test environment."""

    def error(self, coef: ArrayLike) -> float:
        """Return |w - w*| / |w*|, with every coefficient in units of its column's pooled standard deviation."""
        scale = self.X.std(0)
        return float(np.linalg.norm((np.asarray(coef) - self.truth) * scale) / np.linalg.norm(self.truth * scale))

    def risk(self, coef: ArrayLike, intercept: float = 0.0) -> float:
        """Return the largest mean squared error over the test environments, relative to that of w*."""
        mse = lambda w, b: max(float(np.mean((y - X @ w - b) ** 2)) for X, y in self.tests)
        return mse(np.asarray(coef), intercept) / mse(self.truth, 0.0)


@dataclass(frozen=True)
class _Environment:
    """The parameters of one environment."""

    strength: np.ndarray
    scale: float = 1.0
    mean: float | np.ndarray = 0.0
    noise: float = 1.0
    child_noise: float = 1.0
    child_mean: float | np.ndarray = 0.0


def _signs(rng: np.random.Generator, environments: int, q: int) -> np.ndarray:
    """Return +-1 for each environment and child, in equal numbers for each child up to one."""
    half = np.where(np.arange(environments) % 2 == 0, 1.0, -1.0)
    return np.stack([rng.permutation(half) * rng.choice([-1.0, 1.0]) for _ in range(q)], axis=1)


def _spread(rng: np.random.Generator, mean: float, spread: float, environments: int, q: int) -> np.ndarray:
    return mean + _signs(rng, environments, q) * spread * rng.uniform(0.8, 1.2, (environments, q))


def _far(q: int, **changes: float) -> list[_Environment]:
    return [_Environment(np.full(q, a), **changes) for a in FAR]


Recipe = Callable[[np.random.Generator, int, int, int], tuple[list[_Environment], list[_Environment]]]


def _flip(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    return [_Environment(a) for a in _spread(rng, 0.3, 1.5, e, q)], _far(q)


def _mild(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    return [_Environment(a) for a in _spread(rng, 0.7, 1.0, e, q)], _far(q)


def _consistent(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    return [_Environment(a) for a in rng.uniform(0.5, 1.5, (e, q))], _far(q)


def _covariate(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    strengths = _spread(rng, 0.3, 1.5, e, q)
    scales, means = rng.uniform(0.5, 1.5, e), rng.normal(0, 0.5, (e, k))
    train = [_Environment(a, scale=s, mean=m) for a, s, m in zip(strengths, scales, means, strict=True)]
    return train, _far(q, scale=2.0, mean=1.0)


def _chain(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    same = np.ones(q)
    train = [_Environment(same, scale=s, noise=s) for s in np.geomspace(0.2, 5, e)]
    return train, _far(q)


def _child_noise(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    same = np.ones(q)
    train = [_Environment(same, child_noise=s) for s in np.geomspace(0.3, 3, e)]
    return train, [_Environment(same, child_noise=s) for s in (0.1, 10.0)] + _far(q)


def _shift(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    same = np.ones(q)
    train = [_Environment(same, mean=rng.normal(0, 1, k), child_mean=rng.normal(0, 2, q)) for _ in range(e)]
    return train, [_Environment(same, mean=m, child_mean=c) for m, c in ((0.0, 5.0), (0.0, -5.0), (2.0, 0.0))]


def _iid(rng: np.random.Generator, e: int, k: int, q: int) -> tuple[list[_Environment], list[_Environment]]:
    return [_Environment(np.zeros(q)) for _ in range(e)], _far(q)


RECIPES: dict[str, Recipe] = {
    "flip": _flip,
    "mild": _mild,
    "consistent": _consistent,
    "flip with covariate shift": _covariate,
    "chain": _chain,
    "child noise": _child_noise,
    "shift": _shift,
    "iid": _iid,
}

DESIGNS = (*RECIPES, "dag")
"""The names that `grouped_design` accepts."""


def grouped_design(
    name: str, seed: int | np.random.Generator = 0, *, d: int = 30, environments: int = 5, n: int = 1000,
    causes: int = 4, children: int = 3,
) -> GroupedDesign:  # fmt: skip
    """Return a design by name, with `n` rows in each of its environments.

    Columns are causes (correlation .3^|i-j|, coefficients +-U(.5, 1.5)), then children of y, then irrelevant columns
    with correlation .4 to a cause. y and the children have noise N(0, 1). The designs vary between environments:

    - flip: child_j = a y + noise with a = .3 +- 1.5, signs balanced, spreads times U(.8, 1.2); mild: .7 +- 1;
      consistent: a ~ U(.5, 1.5), of one sign.
    - flip with covariate shift: flip, and the causes have scale U(.5, 1.5) and means N(0, .5^2).
    - chain: a = 1, the scale of the causes and of y's noise are both geometric, .2 to 5.
    - child noise: a = 1, the children's noise is geometric, .3 to 3.
    - shift: a = 1, means N(0, 1) on causes and N(0, 2^2) on children.
    - iid: nothing varies, and a = 0.
    - dag: a random sparse graph on all columns and y. In each environment half the other nodes have their incoming
      weights multiplied by U(-1, 2) and their noise by U(.5, 2). `causes` and `children` have no effect.

    Test environments are outside the range of training: children of strength -1.5, 2 and 0, or similar.

    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("flip", seed=0)
    >>> print(design.X.shape, design.children.sum(), round(design.risk(design.truth), 2), design.error(design.truth))
    (5000, 30) 3 1.0 0.0
    """
    if name not in DESIGNS:
        raise ValueError(f"`grouped_design({name!r})`: there is no such design; choose one of {', '.join(DESIGNS)}.")
    for what, value in (("d", d), ("environments", environments), ("n", n), ("causes", causes), ("children", children)):
        validate.positive_integer("grouped_design", what, value)
    if causes + children > d:
        raise ValueError(
            f"`grouped_design(d={d}, causes={causes}, children={children})`: give at least {causes + children} columns."
        )
    rng = np.random.default_rng(seed)
    if name == "dag":
        return _dag(rng, d, environments, n)
    weights = rng.choice([-1.0, 1.0], causes) * rng.uniform(0.5, 1.5, causes)
    parent = rng.integers(0, causes, d - causes - children)
    train, test = RECIPES[name](rng, environments, causes, children)
    drawn = [_rows(rng, e, weights, parent, n) for e in train]
    groups = np.repeat(np.arange(environments), n)
    truth = np.concatenate([weights, np.zeros(d - causes)])
    column = np.arange(d)
    return GroupedDesign(
        name=name,
        X=np.concatenate([x for x, _ in drawn]),
        y=np.concatenate([y for _, y in drawn]),
        groups=groups,
        truth=truth,
        children=(column >= causes) & (column < causes + children),
        tests=tuple(_rows(rng, e, weights, parent, n) for e in test),
    )


def _rows(
    rng: np.random.Generator, e: _Environment, weights: np.ndarray, parent: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    k, q = len(weights), len(e.strength)
    gap = np.abs(np.arange(k)[:, None] - np.arange(k)[None])
    causes = e.mean + e.scale * rng.standard_normal((n, k)) @ np.linalg.cholesky(0.3**gap).T
    y = causes @ weights + e.noise * rng.standard_normal(n)
    children = e.child_mean + y[:, None] * e.strength[None] + e.child_noise * rng.standard_normal((n, q))
    rest = 0.4 * causes[:, parent] + np.sqrt(1 - 0.4**2) * rng.standard_normal((n, len(parent)))
    return np.concatenate([causes, children, rest], axis=1), y


def _dag(rng: np.random.Generator, d: int, environments: int, n: int) -> GroupedDesign:
    """Return a design on a random graph: nodes in causal order, y in the middle, two parents per node on average."""
    nodes, target = d + 1, (d + 1) // 2
    order = np.arange(nodes)
    edge = (rng.random((nodes, nodes)) < 4 / d) & (order[None] < order[:, None])
    edge[target, rng.integers(0, target)] = True
    edge[target + 1 + rng.integers(0, nodes - target - 1), target] = True
    size = rng.choice([-1.0, 1.0], edge.shape) * rng.uniform(0.5, 1.5, edge.shape)
    weights = np.where(edge, size, 0.0) / np.sqrt(np.maximum(edge.sum(1), 1))[:, None]
    weights[target] *= np.sqrt(edge[target].sum())
    descends = np.zeros(nodes, bool)
    for node in range(target + 1, nodes):
        descends[node] = edge[node, target] or (edge[node] & descends).any()
    free = order != target

    def rows(share: float, low: float, high: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
        hit = (rng.random(nodes) < share) & free
        factor = np.where(hit, rng.uniform(low, high, nodes), 1.0)
        spread = np.where(hit, rng.uniform(1 / noise, noise, nodes), 1.0)
        values = np.zeros((n, nodes))
        for node in range(nodes):
            values[:, node] = factor[node] * values @ weights[node] + spread[node] * rng.standard_normal(n)
        return values[:, free], values[:, target]

    drawn = [rows(0.5, -1.0, 2.0, 2.0) for _ in range(environments)]
    tests = tuple(rows(1.0, -2.0, 3.0, 3.0) for _ in range(3))
    return GroupedDesign(
        name="dag",
        X=np.concatenate([x for x, _ in drawn]),
        y=np.concatenate([y for _, y in drawn]),
        groups=np.repeat(np.arange(environments), n),
        truth=weights[target][free],
        children=descends[free],
        tests=tests,
    )
