"""Claims: the transition at which two layers stop learning, and the sign that v keeps."""

import jax
import numpy as np
from _balance_chain import (
    CRITICAL,
    MEAN,
    NOISE,
    SCALES,
    Runs,
    balanced,
    full_batch,
    labels,
    log_product,
    product,
    run_sgd,
    sgd_noise,
)  # fmt: skip

import undertow as ut
from undertow.verification import Above, Below, Check, Claim, Measurement, Within, replaced
from undertow.verification.statistics import mean, share


def growth(p, temperature, key, average=MEAN, steps=1000, **settings):
    """Return the mean rate of log v of two layers far below the minimum, with its standard error."""
    start, time = balanced(1e-30, 2), steps * temperature
    run = run_sgd(labels(average), start, temperature, time, key, p, observe={"log": log_product}, **settings)
    return mean((run.observed["log"][:, -1] - run.observed["log"][:, 0]) / time)


def sde_in_place_of_sgd(right):
    """Plant the SDE, with steps that are short against those of SGD."""

    def run(problem, start, step_size, time, key, p, **settings):
        settings |= {"key": key, "seeds": p.seeds, "progress": False}
        return ut.diffuse(sgd_noise(problem), start, step_size=step_size, time=time, substeps=64, **settings)

    return run


def measure_critical(p, key):
    """Measure the rate of growth at three temperatures around the critical one."""
    checks = []
    for factor in (0.5, 1.0, 2.0):
        value, error = growth(Runs(8 * p.seeds), factor * CRITICAL, jax.random.fold_in(key, round(2 * factor)))
        checks.append(Check(f"rate of log v / (4 b2) at T = {factor:g} T_c", value / (4 * MEAN), 1 - factor,
                            error / (4 * MEAN), Within(0.03, 0.4), alternative=1.0))  # fmt: skip
    return Measurement(tuple(checks), seeds=8 * p.seeds)


critical_temperature = Claim(
    "Two layers learn nothing above T_c = b2/a3: a small v grows at the rate 4 (b2 - T a3), which is zero there.",
    measure_critical,
    place="phase transition",
    equation="E d/dt log v = 4 (b2 - T a3) at v → 0",
    alternative="A small v grows at the rate 4 b2 of gradient flow, at every temperature.",
    scales=SCALES,
    rests_on=("two-layers",),
    plant=replaced(run_sgd, full_batch, "sgd_noise"),
)


def measure_threshold_with_decay(p, key):
    """Measure the rate of growth with weight decay."""
    decay = 0.04
    value, error = growth(Runs(8 * p.seeds), 0.5 * CRITICAL, key, weight_decay=decay)
    predicted = 4 * (MEAN / 2 - decay / 2)
    check = Check("rate of log v", value, predicted, error, Within(0.006, 0.05), alternative=4 * MEAN / 2)
    return Measurement((check,), seeds=8 * p.seeds)


decay_and_threshold = Claim(
    "Weight decay lowers the critical temperature to (b2 - c)/a3 for the penalty c |u|^2: the two effects on v add "
    "up. The weight decay of PyTorch is 2 c.",
    measure_threshold_with_decay,
    place="phase transition, with weight decay",
    equation="E d/dt log v = 4 (b2 - c - T a3)",
    alternative="Weight decay does not change the rate.",
    scales=SCALES,
    rests_on=("critical-temperature",),
    plant=replaced(measure_threshold_with_decay, lambda right: lambda *args, weight_decay: right(*args), "growth"),
)


def measure_finite_step(p, key):
    """Measure the growth of SGD at the critical temperature of the SDE, where that is a large step."""
    average = 0.7
    step = average / NOISE**2
    value, error = growth(Runs(8 * p.seeds), step, key, average, steps=40)
    predicted = 2 * np.mean(np.log(np.abs(1 + 2 * step * np.array([average - NOISE, average + NOISE]))))
    check = Check("change of log v per step at η = b2/a3", value * step, float(predicted), error * step,
                  Within(0.0, 0.3), printed=0.0, alternative=0.0)  # fmt: skip
    return Measurement((check,), seeds=8 * p.seeds)


threshold_of_sgd = Claim(
    "T_c = b2/a3 is the threshold of the SDE. SGD has its threshold where E log|1 + 2 η xy| = 0. Where b2^2 is not "
    "small against a3 the two differ, and SGD still learns at η = b2/a3.",
    measure_finite_step,
    place="phase transition, for SGD",
    equation="E Δ log v = 2 E log|1 + 2 η x y| at v → 0",
    alternative="SGD has the threshold of the SDE.",
    scales=SCALES,
    rests_on=("critical-temperature",),
    plant=replaced(growth, sde_in_place_of_sgd, "run_sgd"),
)


def measure_sign(p, key):
    """Count the runs in which v changes its sign, for two layers and for one."""
    ends = {}
    for layers in (2, 1):
        run = run_sgd(labels(), balanced(MEAN, layers), CRITICAL / 2, 200.0, key, p, every=1, observe={"v": product})
        ends[layers] = (run.observed["v"] < 0).any(axis=1)
    value, error = share(ends[2])
    other, other_error = share(ends[1])
    checks = (
        Check("share of runs that change the sign, two layers", value, 0.0, error, Below(0.2), alternative=other),
        Check("share of runs that change the sign, one layer", other, 1.0, other_error, Above(0.8), alternative=value),
    )
    return Measurement(checks, seeds=p.seeds)


broken_ergodicity = Claim(
    "Balanced layers never change the sign of v, although linear regression with the same noise does: positive and "
    "negative v are separate.",
    measure_sign,
    place="broken ergodicity",
    equation="v+ = v (1 - 2η x (v x - y))² for u = w",
    alternative="Noise carries v through zero.",
    scales=SCALES,
    rests_on=("balance-decays",),
    plant=replaced(measure_sign, lambda right: lambda v, layers: right(v, 1), "balanced"),
)
