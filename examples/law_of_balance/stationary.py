"""Claims: the stationary distribution of v for one, two and more layers."""

import jax
import jax.numpy as jnp
import numpy as np
from _balance_chain import (
    CRITICAL,
    MEAN,
    NOISE,
    SCALES,
    balanced,
    chain,
    full_batch,
    labels,
    log_product,
    moments,
    product,
    run_sgd,
    several,
    sgd_noise,
)  # fmt: skip
from scipy import integrate, special, stats

import undertow as ut
from undertow.verification import AtLevel, Check, Claim, Measurement, Within, replaced
from undertow.verification.statistics import mean


def log_density(v, layers, temperature, problem):
    """Return the logarithm of the stationary density at v > 0, without its constant; v is an increasing grid."""
    b1, b2, a1, a2, a3 = moments(problem)
    noise = a1 * v**2 - 2 * a2 * v + a3
    force = (b1 * v - b2) / (noise * v ** (2 - 2 / layers))
    work = integrate.cumulative_trapezoid(force * v, np.log(v), initial=0.0)
    return (-3 + 3 / layers) * np.log(v) - np.log(noise) - work / (layers * temperature)


def stationary_cdf(layers, temperature, problem, density=log_density):
    """Return the grid log v and the stationary distribution function on it."""
    grid = np.linspace(np.log(1e-9), np.log(30.0), 40_001)
    weight = density(np.exp(grid), layers, temperature, problem) + grid
    weight = np.exp(weight - weight.max())
    total = integrate.cumulative_trapezoid(weight, grid, initial=0.0)
    return grid, total / total[-1]


def noise_at_the_minimum(right):
    """Plant noise that does not depend on v."""

    def noise(problem):
        b1, b2, a1, a2, a3 = moments(problem)
        best = b2 / b1
        return ut.Isotropic(problem, 2 * float(a1 * best**2 - 2 * a2 * best + a3) ** 0.5)

    return noise


def one_layer(right):
    """Plant linear regression in place of a chain."""
    return lambda v, layers: right(v, 1)


def measure_regression(p, key):
    """Solve the SDE, and run SGD, of linear regression with one input of large weight."""
    x = np.array([2.0] + [0.5] * 9)
    problem = chain(x, x + np.tile([0.6, -0.6], 5))
    b1, b2, a1, a2, a3 = moments(problem)
    eta, best = 0.1, b2 / b1
    noise = a1 * best**2 - 2 * a2 * best + a3
    noise_of_sgd = sgd_noise(problem)
    settings = {"average": {"v2": lambda u: (product(u) - best) ** 2}, "every": 500, "progress": False}
    many = {"key": key, "seeds": 4 * p.seeds, "step_size": eta} | settings
    sde = ut.diffuse(noise_of_sgd, jnp.array([best]), time=200.0, substeps=8, **many)
    sgd = ut.descend(noise_of_sgd, jnp.array([best]), steps=2000, **many)
    fourth = np.mean(x**4)
    additive, exact, discrete = noise / b1, noise / (b1 - eta * a1), noise / (b1 - eta * fourth)
    checks = []
    for name, run, predicted, other in (("SDE", sde, exact, additive), ("SGD", sgd, discrete, exact)):
        value, error = mean(run.observed["v2"][:, 2:].mean(axis=1) / eta)
        checks.append(Check(f"Var v / T of the {name}", value, predicted, error,
                            Within(0.02 * predicted, 0.5 * abs(predicted - other)), alternative=other))  # fmt: skip
    return Measurement(tuple(checks), seeds=4 * p.seeds)


regression_variance = Claim(
    "Linear regression, the chain with one layer, has the stationary variance T C/(b1 - T a1), because its noise is "
    "multiplicative. SGD at a finite step has E x^4 in place of a1 = Var x^2.",
    measure_regression,
    place="stationary distribution, one layer",
    equation="Var v = T C(b2/b1)/(b1 - T a1)",
    alternative="The noise is that at the minimum: Var v = T C/b1; for SGD, the variance is that of the SDE.",
    scales=SCALES,
    plant=replaced(measure_regression, noise_at_the_minimum, "sgd_noise"),
)


def measure_gamma(p, key):
    """Run two layers with labels of two values below the critical temperature."""
    temperature, time = CRITICAL / 2, 2000.0
    run = run_sgd(labels(), balanced(MEAN, 2), temperature, time, key, p, every=round(time / temperature / 2),
                  observe={"v": product}, average={"mean": product, "log": log_product})  # fmt: skip
    shape, scale = MEAN / (2 * temperature * NOISE**2) - 0.5, 2 * temperature * NOISE**2
    value, error = mean(run.observed["mean"][:, -1] / MEAN)
    logs, log_error = mean(run.observed["log"][:, -1] - np.log(scale))
    checks = (
        Check("E v / (b2/b1)", value, shape * scale / MEAN, error, Within(0.05, 0.2), alternative=1.0),
        Check("E log v - log(2 T a3/b1)", logs, float(special.digamma(shape)), log_error, Within(0.1, 0.5),
              alternative=float(special.digamma(shape + 0.5))),
    )  # fmt: skip
    return Measurement(checks, seeds=p.seeds)


two_layers = Claim(
    "If all inputs are equal, v of two layers has a Gamma distribution with the shape b2/(2 T a3) - 1/2 and the mean "
    "(b2 - T a3)/b1: noise lowers the mean below the minimum of the loss.",
    measure_gamma,
    place="stationary distribution, two layers",
    equation="p(v) ∝ v^(b2/(2 T a3) - 3/2) exp(-b1 v/(2 T a3))",
    alternative="The mean is the minimum b2/b1; the shape is b2/(2 T a3), without the Ito term.",
    scales=SCALES,
    rests_on=("balance-decays",),
    plant=replaced(run_sgd, full_batch, "sgd_noise"),
)


def boltzmann(v, layers, temperature, problem):
    """Return the logarithm of the density of a Langevin equation with the noise at the minimum."""
    b1, b2, a1, a2, a3 = moments(problem)
    best = b2 / b1
    return -(b1 * v**2 - 2 * b2 * v) / (2 * temperature * (a1 * best**2 - 2 * a2 * best + a3))


def measure_density(p, key):
    """Compare the ends of runs with different inputs with the stationary distribution function."""
    problem = several()
    _, b2, _, _, a3 = moments(problem)
    temperature = 0.3 * b2 / a3
    run = run_sgd(problem, balanced(b2, 2), temperature, 1500.0, key, p, observe={"log": log_product})
    logs = np.asarray(run.observed["log"][:, -1])
    test = lambda grid, total: float(stats.kstest(logs, lambda z: np.interp(z, grid, total)).pvalue)
    grid, total = stationary_cdf(2, temperature, problem)
    check = Check("p-value of v at the end", test(grid, total), 1.0, 0.0, AtLevel(1e-3, "Kolmogorov-Smirnov"),
                  alternative=test(*stationary_cdf(2, temperature, problem, boltzmann)))  # fmt: skip
    return Measurement((check,), seeds=p.seeds)


density = Claim(
    "With inputs that differ, the noise depends on v, and v of two balanced layers has the density of the paper.",
    measure_density,
    place="stationary distribution, two layers",
    equation="p(v) ∝ v^(-3/2)/C(v) exp(-(1/2T) ∫ (b1 v - b2)/(v C(v)) dv)",
    alternative="The density is that of Boltzmann, exp(-L/T'), with the noise at the minimum.",
    scales=SCALES,
    rests_on=("balance-decays", "two-layers"),
    plant=replaced(measure_density, one_layer, "balanced"),
)


def measure_depth(p, key):
    """Run three layers at twice the critical temperature of two layers."""
    temperature, time = 2 * CRITICAL, 6000.0
    run = run_sgd(labels(), balanced(MEAN, 3), temperature, time, key, p, every=round(time / temperature / 2),
                  observe={"log": log_product}, average={"mean": log_product})  # fmt: skip
    value, error = mean(run.observed["mean"][:, -1])
    grid, total = stationary_cdf(3, temperature, labels())
    predicted = float(np.trapezoid(grid, total))
    collapsed = float(np.log(MEAN)) - 4 * MEAN * time / 2
    check = Check("mean of log v", value, predicted, error, Within(0.3, 1.0), alternative=collapsed)
    return Measurement((check,), seeds=p.seeds)


no_transition = Claim(
    "Three layers have no critical temperature: near zero the noise vanishes faster than the force, so that v stays "
    "finite at a temperature at which two layers learn nothing, with the mean of log v that the density has.",
    measure_depth,
    place="stationary distribution, three layers",
    equation="p(v) ∝ v^(-2)/C(v) exp(-(1/3T) ∫ (b1 v - b2)/(v^(4/3) C(v)) dv)",
    alternative="v goes to zero as for two layers.",
    scales=SCALES,
    rests_on=("deep-balance", "critical-temperature"),
    plant=replaced(measure_depth, lambda right: lambda v, layers: right(v, 2), "balanced"),
)


def coefficients(problem, temperature, layers, v):
    """Return drift and squared noise of v, from the covariance of the noise and the derivatives of v (Ito)."""
    noise = sgd_noise(problem)

    def at(value):
        u = balanced(value, layers)
        spread = noise.covariance(u)
        slope = jax.grad(product)(u)
        drift = -slope @ problem.gradient(u) + temperature / 2 * spread.trace(jax.hessian(product)(u).__matmul__)
        return drift, temperature * slope @ spread.mv(slope)

    return jax.vmap(at)(jnp.asarray(v))


def without_ito(right):
    """Plant a drift without the second derivative of v, which contributes (1 - 1/n)/2 of the squared noise over v."""

    def planted(problem, temperature, layers, v):
        drift, spread = right(problem, temperature, layers, v)
        return drift - (1 - 1 / layers) / 2 * spread / v, spread

    return planted


def measure_tail(key):
    """Solve the equation of zero flux for the density, with the coefficients of the chain itself."""
    v = np.exp(np.linspace(np.log(1e4), np.log(1e6), 2001))
    checks = []
    for layers in (2, 3, 4):
        drift, spread = (np.asarray(c) for c in coefficients(several(), 0.05, layers, v))
        log_p = integrate.cumulative_trapezoid(2 * drift / spread * v, np.log(v), initial=0.0) - np.log(spread)
        slope = float((log_p[-1] - log_p[-2]) / np.log(v[-1] / v[-2]))
        checks.append(Check(f"exponent of the tail, {layers} layers", slope, -5 + 3 / layers, 0.0, Within(0.02, 0.5),
                            alternative=-6 + 4 / layers))  # fmt: skip
    return tuple(checks)


tail = Claim(
    "The stationary density has a power-law tail whose exponent depends on the number of layers alone.",
    measure_tail,
    place="power-law tail",
    equation="p(v) ~ v^(-5 + 3/n)",
    alternative="Without the Ito term the exponent is -6 + 4/n.",
    rests_on=("density",),
    plant=replaced(measure_tail, without_ito, "coefficients"),
)  # fmt: skip
