"""Lines of the paper that cannot stand as printed, each with the number that shows it."""

from dataclasses import dataclass

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

POWER = 2 / 3
"""Of the products in Lemma 7."""
FOLLOWED = 4
"""Steps over which the mean of that power is followed."""


@dataclass(frozen=True)
class Batches:
    """Batches of explicit measurements of a fixed matrix."""

    draws: int
    """How many batches."""
    m: int = 10
    """Measurements in a batch."""
    d: int = 4
    """Dimension of the matrices."""


@dataclass(frozen=True)
class Runs:
    """HeteroSGD on measurements that are drawn one by one, from U = alpha I."""

    seeds: int
    """Runs of each kind."""
    spread: float
    """M of the spurious law 1 +- M; 0 leaves A* alone."""
    rank: int
    """Of A*."""
    d: int = 4
    """Dimension of the matrices."""
    m: int = 200
    """Measurements per step."""
    step_size: float = 0.05
    """The paper's eta."""
    steps: int = 200
    """Number of steps."""
    alpha: float = 1e-3
    """Of the start."""
    fresh: int = 1000
    """Measurements on which a fitted model is tested."""


@dataclass(frozen=True)
class Controller:
    """The controller sequence q of Definition 4 with L = alpha, one direction, two-point law mean +- M."""

    runs: int
    """Independent sequences."""
    moments: int
    """Products drawn for the moment of Lemma 7."""
    mean: float = 1.0
    """Mean of the spurious signal."""
    spread: float = 21.0
    """M, large enough for the supermartingale of Lemma 7."""
    step_size: float = 0.05
    """eta."""
    steps: int = 100
    """T2."""
    violation: float = 1e-3
    """p: the level is p^-1.5 L."""


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
    told = 1 / (2 * p.m)  # the variance of an entry of G off the diagonal and off M, symmetric X
    checks = (
        Check(
            "symmetric X with N(0,1) entries: E<X, M>² over |M|², M off the diagonal", squares[0], 2.0, squares[1],
            Within(0.0, 0.2), printed=1.0, alternative=1.0,
        ),
        *(
            Check(f"{name}: noise of G off the diagonal", noise[which][0] / told, want, noise[which][1] / told,
                  Within(0.0, 0.3), alternative=3.0 - want)
            for name, which, want in (
                ("N(0,1/2) off the diagonal", "goe", 1.0), ("full X, symmetrised in the step", "half", 1.0),
                ("full X as it is", "full", 2.0),
            )
        ),
        Check("full X as it is: variance of G_ij - G_ji", skew[0] / told, 4.0, skew[1] / told, Within(0.0, 0.6),
              alternative=0.0),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"ratio": ("check", [c.measured for c in checks])}), p.draws)


def _mirrored(white: np.ndarray) -> np.ndarray:
    """Symmetric X with every entry N(0, 1), as printed."""
    return np.triu(white) + np.swapaxes(np.triu(white, 1), 2, 3)


def _symmetric(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Full N(0, 1) matrices, symmetrised: the measurements of the isometry (8)."""
    white = rng.standard_normal(shape)
    return (white + np.swapaxes(white, -1, -2)) / 2


def _model(x: np.ndarray, product: np.ndarray) -> np.ndarray:
    """<X, UU'> for each measurement of each run."""
    return np.einsum("smij,sij->sm", x, product)


def _environment(signal: np.ndarray, size: np.ndarray, spurious: np.ndarray) -> np.ndarray:
    """A(e) = A* + s vv', as printed in Section 5."""
    return signal[None] + size[:, None, None] * spurious[None]


def _signals(parameters: Runs) -> tuple[np.ndarray, np.ndarray]:
    """A* and vv', on coordinate axes."""
    axes = np.eye(parameters.d)
    return axes * (np.arange(parameters.d) < parameters.rank)[None], np.outer(axes[-1], axes[-1])


def _learnt(parameters: Runs, rng: np.random.Generator, printed: bool) -> np.ndarray:
    """U of every run after U - eta G U on y = <X, A* + A(e)>, with A(e) as printed or A(e) = s vv'."""
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
    # a model that does not see X predicts the same number for every measurement: at best the mean of y
    what = "share of the variance of fresh y that the fitted model explains"
    check = Check(what, share[0], 1.0, share[1], Within(1e-3, 0.1), printed=0.0, alternative=0.0)
    return Measurement((check,), xarray.Dataset({"missed": ("seed", missed)}), p.seeds)


def _measure_doubled(parameters: Runs, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, _rng(key)
    along = lambda u: statistics.mean(np.sum(u[:, 0] ** 2, axis=1))
    (two, two_error), (one, one_error) = (along(_learnt(p, rng, printed)) for printed in (True, False))
    checks = (
        Check("A(e) = A* + s vv' put into (1): learnt along u", two, 2.0, two_error, Within(0.03, 0.3), 1.0, 1.0),
        Check("A(e) = s vv': learnt along u", one, 1.0, one_error, Within(0.03, 0.2), alternative=2.0),
    )
    return Measurement(checks, xarray.Dataset({"learnt": ("reading", [one, two])}), p.seeds)


def _factors(parameters: Controller, sizes: np.ndarray) -> np.ndarray:
    """What a step multiplies the controller by, in Definitions 4 and 5."""
    return 1 + parameters.step_size * sizes + 2 * parameters.step_size


def _crossing(parameters: Controller) -> float:
    """The probability that the controller reaches its level, without sampling: its values form a finite chain."""
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
    told, bracket = after(1 + eta * values + 2 * eta, POWER), after(1 + eta * (values + 2 * eta), POWER)
    whole = after(1 + eta * values + 2 * eta, 1.0)
    checks = (
        Check(
            f"(42): E[X_{{t+{FOLLOWED}}}^(2/3)] over X_t^(2/3)", moment[0], told, moment[1], Within(1e-9, 0.1),
            printed=bracket, alternative=bracket, samples=p.moments,
        ),
        Check("Lemma 7: it is below 1", moment[0], told, moment[1], Below(1.0), alternative=whole, samples=p.moments),
        Check(
            "(49): probability of the event as printed, q ≤ level", printed[0], 1.0, printed[1], Within(0.0, 0.1),
            printed=bound, alternative=bound,
        ),
        Check(
            "(49): probability of q ≥ level against that of a finite chain", right[0], _crossing(p), right[1],
            Within(0.0, 0.02), alternative=bound,
        ),
        Check("(49): the same against T2 p", right[0], bound, right[1], Below(bound), alternative=1.0),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"over": right[0], "moment": moment[0]}), p.runs)


CLAIMS = (
    Claim(
        id="symmetric-measurements",
        paper="heterogeneity",
        place="Section 5 against Eq. (1) and Definition 1",
        statement="Measurements are symmetric with i.i.d. N(0,1) elements. They cannot be: such X violate the "
        "isometry (8). Off the diagonal the variance must be 1/2, which is full X symmetrised in the step; full X "
        "used as it is doubles the noise there and makes G nonsymmetric.",
        equation="E<X, M>² = |M|² for symmetric M",
        alternative="Symmetric X with N(0,1) elements are isotropic as printed, E<X, M>² = |M|², and full X give the "
        "step no more noise than symmetric ones.",
        scales={"smoke": Batches(20_000), "default": Batches(100_000), "full": Batches(400_000)},
        measure=_measure_symmetric,
    ),
    Claim(
        id="fitted-model",
        paper="heterogeneity",
        place="Section 3.1, the parametrisation",
        statement="The fitted model is y = <A, UU'>. It is y = <X, UU'>: that one, trained by (3), explains fresh "
        "measurements, and the line as printed says the same number for all of them.",
        equation="y = <X, UU'>",
        alternative="The fitted model is y = <A, UU'> as printed: it does not see X, and explains nothing of y.",
        scales={"smoke": Runs(16, 0.0, 2), "default": Runs(64, 0.0, 2), "full": Runs(500, 0.0, 2)},
        measure=_measure_model,
    ),
    Claim(
        id="spurious-signal-alone",
        paper="heterogeneity",
        place="Section 5 and Appendix B.2 against Eq. (1)",
        statement="Environments have A(e) = A* + s vv'. With (1), y = <X, A* + A(e)>, that counts A* twice and its "
        "signal is learnt as 2; the simulations are those of A(e) = s vv'.",
        equation="y = <X, A* + s vv'>",
        alternative="A(e) = A* + s vv' does not count A* twice: with it HeteroSGD on (1) learns u with the size 1.",
        scales={"smoke": Runs(16, 2.0, 1), "default": Runs(64, 2.0, 1), "full": Runs(500, 2.0, 1)},
        measure=_measure_doubled,
    ),
    Claim(
        id="controller-event",
        paper="heterogeneity",
        place="Eq. (42) and (49)",
        statement="The proof that the spurious part stays small: a step multiplies X^(2/3) by a mean below 1, so the "
        "controller crosses its level rarely. The mean is E(1 + η S + 2η)^(2/3), not with η (S + 2η); and "
        "what has probability at most T2 p is to be above the level. Below it all start.",
        equation="E[X_{t+1}^(2/3)] = E[(1 + η S + 2η)^(2/3)] X_t^(2/3),  P(q ≥ p^-1.5 r2^1.5 L at some t ≤ T2) ≤ T2 p",
        alternative="Both lines stand as printed: the mean is E(1 + η (S + 2η))^(2/3), and it is below the level "
        "that the controller is with probability T2 p at most.",
        scales={
            "smoke": Controller(20_000, 200_000),
            "default": Controller(200_000, 1_000_000),
            "full": Controller(1_000_000, 10_000_000),
        },
        measure=_measure_controller,
    ),
)
