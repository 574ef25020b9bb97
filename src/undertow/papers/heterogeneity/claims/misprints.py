"""Misprints of the paper that a measurement decides."""

from dataclasses import dataclass

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

POWER = 2 / 3
"""Power of the products in Lemma 7."""
FOLLOWED = 4
"""Number of steps over which the mean of that power is measured."""


@dataclass(frozen=True)
class Batches:
    """Batches of explicit measurements of a fixed matrix."""

    draws: int
    """Number of batches."""
    m: int = 10
    """Measurements in a batch."""
    d: int = 4
    """Dimension of the matrices."""


@dataclass(frozen=True)
class Runs:
    """HeteroSGD on measurements that are drawn one by one, from U = alpha I."""

    seeds: int
    """Number of runs of each kind."""
    spread: float
    """Spread M of the spurious law 1 ± M; 0 for no spurious signal."""
    rank: int
    """Rank of A*."""
    d: int = 4
    """Dimension of the matrices."""
    m: int = 200
    """Measurements per step."""
    step_size: float = 0.05
    """Step size η of the paper."""
    steps: int = 200
    """Number of steps."""
    alpha: float = 1e-3
    """Scale α of the start."""
    fresh: int = 1000
    """Number of fresh measurements on which a fitted model is tested."""


@dataclass(frozen=True)
class Controller:
    """The controller sequence q of Definition 4 with L = alpha, one direction, two-point law mean ± M."""

    runs: int
    """Number of independent sequences."""
    moments: int
    """Number of products drawn for the moment of Lemma 7."""
    mean: float = 1.0
    """Mean of the spurious signal."""
    spread: float = 21.0
    """Spread M, large enough for the supermartingale of Lemma 7."""
    step_size: float = 0.05
    """Step size η."""
    steps: int = 100
    """Number of steps T2."""
    violation: float = 1e-3
    """Probability p; the level is p^-1.5 L."""


def _rng(key: Key[Array, ""]) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _measure_symmetric(parameters: Batches, key: Key[Array, ""]) -> Measurement:
    p = parameters
    white = _rng(key).standard_normal((p.draws, p.m, p.d, p.d))
    target = np.zeros((p.d, p.d))
    target[0, 1] = target[1, 0] = np.sqrt(0.5)  # |M| = 1, off the diagonal
    squares = statistics.mean((np.einsum("nmij,ij->nm", _mirrored(white), target) ** 2).mean(1))

    def step(x: np.ndarray) -> np.ndarray:
        return np.einsum("nm,nmij->nij", np.einsum("nmij,ij->nm", x, target), x) / p.m

    full = step(white)
    goe = step((white + np.swapaxes(white, 2, 3)) / 2)
    halves = (full + np.swapaxes(full, 1, 2)) / 2  # full X, symmetrised in the step
    noise = {name: statistics.mean(g[:, 2, 3] ** 2) for name, g in (("full", full), ("goe", goe), ("half", halves))}
    skew = statistics.mean((full[:, 2, 3] - full[:, 3, 2]) ** 2)
    variance = 1 / (2 * p.m)  # the variance of an entry of G off the diagonal and off M, symmetric X
    checks = (
        Check(
            "symmetric X with N(0, 1) entries: E<X, M>²/|M|² for M off the diagonal", squares[0], 2.0, squares[1],
            Within(0.0, 0.2), printed=1.0, alternative=1.0,
        ),
        *(
            Check(f"{name}: variance of G_ij off the diagonal, in units of 1/(2m)", noise[which][0] / variance,
                  predicted, noise[which][1] / variance, Within(0.0, 0.3), alternative=3.0 - predicted)
            for name, which, predicted in (
                ("N(0, 1/2) off the diagonal", "goe", 1.0), ("full X, symmetrised in the step", "half", 1.0),
                ("full X, not symmetrised", "full", 2.0),
            )
        ),
        Check("full X, not symmetrised: variance of G_ij - G_ji, in units of 1/(2m)", skew[0] / variance, 4.0,
              skew[1] / variance, Within(0.0, 0.6), alternative=0.0),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"ratio": ("check", [c.measured for c in checks])}), p.draws)


def _mirrored(white: np.ndarray) -> np.ndarray:
    """Return symmetric X with every entry N(0, 1), as printed."""
    return np.triu(white) + np.swapaxes(np.triu(white, 1), 2, 3)


def _symmetric(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return full N(0, 1) matrices, symmetrised: the measurements of the isometry (8)."""
    white = rng.standard_normal(shape)
    return (white + np.swapaxes(white, -1, -2)) / 2


def _model(x: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return <X, UU'> for each measurement of each run."""
    return np.einsum("smij,sij->sm", x, product)


def _environment(signal: np.ndarray, size: np.ndarray, spurious: np.ndarray) -> np.ndarray:
    """Return A(e) = A* + s vv', as printed in Section 5."""
    return signal[None] + size[:, None, None] * spurious[None]


def _signals(parameters: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return A* and vv', on coordinate axes."""
    axes = np.eye(parameters.d)
    return axes * (np.arange(parameters.d) < parameters.rank)[None], np.outer(axes[-1], axes[-1])


def _learnt(parameters: Runs, rng: np.random.Generator, printed: bool) -> np.ndarray:
    """Return U of every run after the steps U - eta G U on y = <X, A* + A(e)>, A(e) as printed or A(e) = s vv'."""
    p = parameters
    signal, spurious = _signals(p)
    u = np.broadcast_to(p.alpha * np.eye(p.d), (p.seeds, p.d, p.d))
    for _ in range(p.steps):
        size = 1 + p.spread * rng.choice([-1.0, 1.0], p.seeds) if p.spread else np.zeros(p.seeds)
        environment = _environment(signal, size, spurious) if printed else size[:, None, None] * spurious[None]
        x = _symmetric(rng, p.seeds, p.m, p.d, p.d)
        y = np.einsum("smij,sij->sm", x, signal[None] + environment)
        residual = _model(x, u @ np.swapaxes(u, 1, 2)) - y
        u = u - p.step_size * np.einsum("sm,smij->sij", residual, x) / p.m @ u
    return u


def _measure_model(parameters: Runs, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, _rng(key)
    u = _learnt(p, rng, printed=False)
    x = _symmetric(rng, p.seeds, p.fresh, p.d, p.d)
    y = np.einsum("smij,ij->sm", x, _signals(p)[0])
    missed = ((y - _model(x, u @ np.swapaxes(u, 1, 2))) ** 2).mean(1)
    share = statistics.mean(1 - missed / y.var(1))
    # a model without X predicts the same number for every measurement, at best the mean of y
    what = "share of the variance of y on fresh measurements that the fitted model explains"
    check = Check(what, share[0], 1.0, share[1], Within(1e-3, 0.1), printed=0.0, alternative=0.0)
    return Measurement((check,), xarray.Dataset({"missed": ("seed", missed)}), p.seeds)


def _measure_doubled(parameters: Runs, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, _rng(key)
    along = lambda u: statistics.mean(np.sum(u[:, 0] ** 2, axis=1))
    (two, two_error), (one, one_error) = (along(_learnt(p, rng, printed)) for printed in (True, False))
    checks = (
        Check("A(e) = A* + s vv' in (1): learnt signal along u", two, 2.0, two_error, Within(0.03, 0.3), 1.0, 1.0),
        Check("A(e) = s vv' in (1): learnt signal along u", one, 1.0, one_error, Within(0.03, 0.2), alternative=2.0),
    )
    return Measurement(checks, xarray.Dataset({"learnt": ("reading", [one, two])}), p.seeds)


def _factors(parameters: Controller, sizes: np.ndarray) -> np.ndarray:
    """Return the factor by which a step multiplies the controller (Definitions 4 and 5)."""
    return 1 + parameters.step_size * sizes + 2 * parameters.step_size


def _crossing(parameters: Controller) -> float:
    """Return the probability that the controller reaches its level, exactly: its values form a finite chain."""
    p = parameters
    down, up = (1 + p.step_size * (p.mean + sign * p.spread) + 2 * p.step_size for sign in (-1, 1))
    states, over = {(0, 0): 1.0}, 0.0
    for _ in range(p.steps):
        after: dict[tuple[int, int], float] = {}
        for (ups, downs), weight in states.items():
            for state in ((ups + 1, downs), (ups, downs + 1)):
                value = up ** state[0] * down ** state[1]
                if value >= p.violation**-1.5:
                    over += weight / 2
                else:
                    state = state if value > 1 else (0, 0)
                    after[state] = after.get(state, 0.0) + weight / 2
        states = after
    return over


def _measure_controller(parameters: Controller, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, _rng(key)
    values = p.mean + p.spread * np.array([-1.0, 1.0])
    level = p.violation**-1.5
    q = np.ones(p.runs)  # over L = alpha
    under, over = q <= level, q >= level
    for _ in range(p.steps):
        q = np.where(over, q, np.maximum(q * _factors(p, rng.choice(values, p.runs)), 1.0))
        under |= q <= level
        over |= q >= level
    bound = p.steps * p.violation
    printed, right = statistics.share(under), statistics.share(over)
    products = np.prod(_factors(p, rng.choice(values, (FOLLOWED, p.moments))), axis=0)
    moment = statistics.mean(products**POWER)  # of X_{k,k+4}/X_{k,k}
    eta, after = p.step_size, lambda factors, power: float((factors**power).mean() ** FOLLOWED)
    predicted, bracket = after(1 + eta * values + 2 * eta, POWER), after(1 + eta * (values + 2 * eta), POWER)
    whole = after(1 + eta * values + 2 * eta, 1.0)
    checks = (
        Check(
            f"(42): E[X_{{t+{FOLLOWED}}}^(2/3)]/X_t^(2/3)", moment[0], predicted, moment[1], Within(1e-9, 0.1),
            printed=bracket, alternative=bracket, samples=p.moments,
        ),
        Check(f"Lemma 7: E[X_{{t+{FOLLOWED}}}^(2/3)]/X_t^(2/3) is below 1", moment[0], predicted, moment[1],
              Below(1.0), alternative=whole, samples=p.moments),
        Check(
            "(49): probability of the printed event, q ≤ level", printed[0], 1.0, printed[1], Within(0.0, 0.1),
            printed=bound, alternative=bound,
        ),
        Check(
            "(49): probability of q ≥ level, exact by a finite chain", right[0], _crossing(p), right[1],
            Within(0.0, 0.02), alternative=bound,
        ),
        Check("(49): probability of q ≥ level, bounded by T2 p", right[0], bound, right[1], Below(bound),
              alternative=1.0),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"over": right[0], "moment": moment[0]}), p.runs)


CLAIMS = (
    Claim(
        id="symmetric-measurements",
        paper="heterogeneity",
        place="Section 5 against Eq. (1) and Definition 1",
        statement="Symmetric measurements with i.i.d. N(0, 1) entries, as printed, violate the isometry (8). Off the "
        "diagonal the variance must be 1/2, which is the law of full X symmetrised in the step. Full X that are not "
        "symmetrised double the noise off the diagonal and make G nonsymmetric.",
        equation="E<X, M>² = |M|² for symmetric M",
        alternative="Symmetric X with N(0, 1) entries are isotropic as printed, E<X, M>² = |M|², and full X add no "
        "more noise to the step than symmetric ones.",
        scales={"smoke": Batches(20_000), "default": Batches(100_000), "full": Batches(400_000)},
        measure=_measure_symmetric,
    ),
    Claim(
        id="fitted-model",
        paper="heterogeneity",
        place="Section 3.1, the parametrisation",
        statement="The fitted model is y = <X, UU'>, not y = <A, UU'> as printed. Trained by (3), the first explains "
        "fresh measurements; the second predicts the same number for all of them.",
        equation="y = <X, UU'>",
        alternative="The fitted model is y = <A, UU'> as printed. It does not depend on X and explains nothing of y.",
        scales={"smoke": Runs(16, 0.0, 2), "default": Runs(64, 0.0, 2), "full": Runs(500, 0.0, 2)},
        measure=_measure_model,
    ),
    Claim(
        id="spurious-signal-alone",
        paper="heterogeneity",
        place="Section 5 and Appendix B.2 against Eq. (1)",
        statement="The environments are A(e) = s vv', not A(e) = A* + s vv' as printed: with Eq. (1), y = <X, A* + "
        "A(e)>, the printed form counts A* twice, and its signal is learnt with the size 2.",
        equation="y = <X, A* + s vv'>",
        alternative="A(e) = A* + s vv' does not count A* twice: with it, HeteroSGD on (1) learns the signal along u "
        "with the size 1.",
        scales={"smoke": Runs(16, 2.0, 1), "default": Runs(64, 2.0, 1), "full": Runs(500, 2.0, 1)},
        measure=_measure_doubled,
    ),
    Claim(
        id="controller-event",
        paper="heterogeneity",
        place="Eq. (42) and (49)",
        statement="The proof that the spurious part stays small uses that a step multiplies X^(2/3) by a mean below "
        "1, so that the controller rarely crosses its level. That mean is E(1 + η S + 2η)^(2/3), not E(1 + η (S + "
        "2η))^(2/3). The event of probability at most T2 p is q ≥ level; the printed event q ≤ level is certain, "
        "because every run starts below the level.",
        equation="E[X_{t+1}^(2/3)] = E[(1 + η S + 2η)^(2/3)] X_t^(2/3),  P(q ≥ p^-1.5 r2^1.5 L at some t ≤ T2) ≤ T2 p",
        alternative="Both lines hold as printed: the mean is E(1 + η (S + 2η))^(2/3), and the controller is below the "
        "level with probability T2 p at most.",
        scales={
            "smoke": Controller(20_000, 200_000),
            "default": Controller(200_000, 1_000_000),
            "full": Controller(1_000_000, 10_000_000),
        },
        measure=_measure_controller,
    ),
)
