"""Claims: noise balances the layers.

undertow verify examples/law_of_balance --scale smoke
undertow verify examples/law_of_balance --scale smoke --plant
"""

import jax
import jax.numpy as jnp
import numpy as np
from _balance_chain import SCALES, chain, full_batch, moments, product, run_sgd, several, sgd_noise

import undertow as ut
from undertow.verification import Below, Check, Claim, Measurement, Within, replaced
from undertow.verification.statistics import mean


def two_factors():
    """Return a problem with u in R^2 and w in R^3, l = |u (w.x) - y|^2, and a point."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 2)) + 1
    loss = lambda p, sample: jnp.sum((p["u"] * jnp.dot(p["w"], sample[0]) - sample[1]) ** 2)
    point = {"u": jnp.array([0.7, -0.4]), "w": jnp.array([0.9, 0.2, -1.1])}
    return ut.Problem(loss, (jnp.asarray(x), jnp.asarray(y))), point


def matrices(problem, point):
    """Return the matrices A = dl/d(w u') of every sample."""
    x, y = map(np.asarray, problem.data)
    residual = np.outer(x @ np.asarray(point["w"]), np.asarray(point["u"])) - y
    return 2 * np.einsum("ni,nj->nij", x, residual)


def covariances(a):
    """Return C1 = E A'A - E A' E A and C2 = E AA' - E A E A'."""
    return products(a - a.mean(axis=0))


def second_moments(a):
    """Return E A'A and E AA'."""
    return products(a)


def products(a):
    """Return the means of A'A and AA' over the samples."""
    return np.mean(np.swapaxes(a, 1, 2) @ a, axis=0), np.mean(a @ np.swapaxes(a, 1, 2), axis=0)


def imbalance(first, second, point):
    """Return u'C1 u - w'C2 w."""
    u, w = np.asarray(point["u"]), np.asarray(point["w"])
    return float(u @ first @ u - w @ second @ w)


def charge(p):
    """Return |u|^2 - |w|^2."""
    return jnp.sum(p["u"] ** 2) - jnp.sum(p["w"] ** 2)


def measure_law(key):
    """Apply the generator of the SDE to |u|^2 - |w|^2."""
    problem, point = two_factors()
    sign = lambda p: {"u": p["u"], "w": -p["w"]}
    gradient = problem.gradient(point)
    drift = -2 * sum(float(jnp.sum(a * b)) for a, b in zip(*map(jax.tree.leaves, (sign(point), gradient)), strict=True))
    spread = float(sgd_noise(problem).covariance(point).trace(sign))
    predicted = -imbalance(*covariances(matrices(problem, point)), point)
    return (
        Check("d/dt (|u|^2 - |w|^2) / T", spread, predicted, 0.0, Within(1e-9, 1.0), alternative=0.0),
        Check("part of the gradient", drift, 0.0, 0.0, Within(1e-12, 1.0), alternative=1.0),
    )


law_of_balance = Claim(
    "Under the SDE of SGD, a loss with the symmetry l(u, w) = l(c u, w/c) changes |u|^2 - |w|^2 at the rate "
    "-T (u'C1 u - w'C2 w), with C1 and C2 the covariances of A = dl/d(w u'). The mean gradient does not contribute.",
    measure_law,
    place="law of balance",
    equation="d/dt (|u|² - |w|²) = -T (u'C1 u - w'C2 w)",
    alternative="Noise conserves |u|^2 - |w|^2, as gradient flow does.",
    plant=replaced(measure_law, full_batch, "sgd_noise"),
)


def measure_sgd(p, key):
    """Take one step of SGD in each of many runs, far from the minimum."""
    problem, point = two_factors()
    eta = 0.01
    run = ut.descend(sgd_noise(problem), point, step_size=eta, steps=1, key=key, seeds=64 * p.seeds,
                     observe={"charge": charge}, progress=False)  # fmt: skip
    changes = np.diff(run.observed["charge"], axis=1)[:, 0] / eta**2
    value, error = mean(changes)
    a = matrices(problem, point)
    printed = -imbalance(*covariances(a), point)
    predicted = -imbalance(*second_moments(a), point)
    criterion = Within(0.0, 0.5 * abs(predicted - printed))
    check = Check("E change of |u|^2 - |w|^2 / η^2", value, predicted, error, criterion, printed, alternative=printed)
    return Measurement((check,), seeds=64 * p.seeds)


balance_of_sgd = Claim(
    "One step of SGD changes |u|^2 - |w|^2 on average by the second moments of A, not by its covariances: a step of "
    "finite size adds the square of the mean gradient, at the same order in the step size. The two agree at a minimum.",
    measure_sgd,
    place="law of balance, for SGD",
    equation="E Δ(|u|² - |w|²) = -η² (u'E[A'A] u - w'E[AA'] w)",
    alternative="The law of the SDE, with covariances, holds for SGD.",
    scales=SCALES,
    rests_on=("law-of-balance",),
    plant=replaced(measure_sgd, lambda right: covariances, "second_moments"),
)


def measure_decay(p, key):
    """Follow log |u^2 - w^2| of two layers at the stationary distribution of v."""
    problem = several()
    _, _, a1, a2, a3 = moments(problem)
    noise_of = lambda u: a1 * product(u) ** 2 - 2 * a2 * product(u) + a3
    eta, time = 0.02, 400.0
    observe = {"log": lambda u: jnp.log(jnp.abs(u[0] ** 2 - u[1] ** 2))}
    run = run_sgd(problem, jnp.array([1.2, 0.3]), eta, time, key, p, every=round(time / eta / 2), observe=observe,
                  average={"C": noise_of})  # fmt: skip
    logs, noises = run.observed["log"], run.observed["C"]
    rates = (logs[:, 2] - logs[:, 1]) / (time / 2) / (-4 * eta * noises[:, -1])
    value, error = mean(rates)
    check = Check("rate of log |u^2 - w^2| / (-4 T C)", value, 1.0, error, Within(0.05, 0.2), alternative=0.0)
    return Measurement((check,), seeds=p.seeds)


balance_decays = Claim(
    "For two layers, u^2 - w^2 decays exponentially at the rate 4 T C(v): SGD ends balanced, wherever it starts.",
    measure_decay,
    place="exponential decay of the imbalance",
    equation="d/dt log |u² - w²| = -4 T C(v)",
    alternative="The difference is conserved, as under gradient flow.",
    scales=SCALES,
    rests_on=("law-of-balance",),
    plant=replaced(run_sgd, full_batch, "sgd_noise"),
)


def measure_deep(p, key):
    """Run four layers from a start without balance."""
    start = jnp.array([1.0, 0.5, 0.8, 0.25])
    spread = lambda u: jnp.max(jnp.log(jnp.abs(u))) - jnp.min(jnp.log(jnp.abs(u)))
    run = run_sgd(chain([1.0, 1.0], [0.5, 1.5]), start, 0.05, 400.0, key, p, observe={"spread": spread})
    value, error = mean(run.observed["spread"][:, -1])
    conserved = ut.descend(full_batch(None)(chain([1.0], [1.0])), start, step_size=0.01, steps=4000, key=0,
                           observe={"spread": spread}, progress=False).observed["spread"][-1]  # fmt: skip
    check = Check("largest log |u_j/u_k|", value, 0.0, error, Below(0.05), alternative=float(conserved))
    return Measurement((check,), seeds=p.seeds)


deep_balance = Claim(
    "In a chain of four layers every pair of neighbours obeys the law of balance: all |u_k| become equal.",
    measure_deep,
    place="balance of all layers",
    equation="|u_1| = ... = |u_n|",
    alternative="All u_j^2 - u_k^2 are conserved.",
    scales=SCALES,
    rests_on=("law-of-balance",),
    plant=replaced(run_sgd, full_batch, "sgd_noise"),
)
