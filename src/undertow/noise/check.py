"""The check of a noise: its methods against the protocol, its mean and covariance against draws."""

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.noise.base import AbstractNoise
from undertow.noise.checks.algebra import LARGEST_TRACE, algebra_rows
from undertow.noise.checks.contract import contract_rows
from undertow.noise.checks.scores import largest_score
from undertow.noise.checks.statistics import Statistic, mean_gradient, statistics
from undertow.noise.checks.table import CheckRow, NoiseCheck, NoiseCheckError

__all__ = ["check_noise"]


def check_noise(
    noise: AbstractNoise, params: PyTree, *, key: KeyLike = 0, draws: int = 4096, false_alarm: Number = 1e-4
) -> NoiseCheck:
    """Check that a noise follows the protocol at params; return a table, or raise `NoiseCheckError` with it.

    The checks are of three kinds:

    - The contract, exactly: shapes and types of `randomness`, `gradient`, `mean` and `covariance`, randomness that does
      not depend on params, the same values under `jit`, `vmap` and in a compiled loop.
    - The methods of the covariance against each other, up to rounding: `mv` is linear and symmetric, and `sqrt_mv`,
      `factor`, `trace` and `moment` belong to the same matrix.
    - The mean, the covariance and the independence of `draws` draws, by z-scores: along random directions, on all
      params and on single leaves, and by two traces. A standard error uses the fourth moments of the draws and the
      error of a mean or covariance that is itself an estimate (`SampledNoise`, `Population`).

    A correct noise fails with a probability of at most `false_alarm`: the limit of |z| is Bonferroni's bound for all
    z-scores together, and the z-scores are corrected for skewness. The bound is asymptotic. It needs draws with a
    finite fourth moment, and events so frequent that `draws` draws contain many of them. No matrix of size D x D is
    formed. For more than 16384 parameters the traces are skipped, and so is a factor of more than 64 MiB.

    **Arguments:** `params` should be generic: not a minimum, and not zero. The same `key` gives the same draws.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.array([[0.0, 1.0], [4.0, 1.0], [1.0, 0.0]]))
    >>> result = ut.check_noise(ut.Minibatch(problem, batch_size=2), jnp.array([3.0, 2.0]))
    >>> result.passed, len(result.rows), result.statistics
    (True, 25, 11)
    """
    validate.instance("check_noise", "noise", noise, AbstractNoise, "a noise, such as `Minibatch(problem, 1)`")
    key = validate.as_key("check_noise", key)
    draws = validate.positive_integer("check_noise", "draws", draws)
    if draws < 100:
        raise ValueError(
            f"{validate.quote('check_noise', draws=draws)}: the z-scores need 100 or more; give a larger number."
        )
    false_alarm = validate.as_float("check_noise", "false_alarm", false_alarm, below=1.0, positive=True)
    validate.params_of_floats("check_noise", params)
    result = _result(noise, params, key, draws, false_alarm)
    if not result.passed:
        raise NoiseCheckError(result)
    return result


def _result(noise: AbstractNoise, params: PyTree, key: Key[Array, ""], draws: int, false_alarm: float) -> NoiseCheck:
    """Return the table, also of a noise that fails. Covariance and draws are skipped where the contract fails."""
    contract_key, mean_key, algebra_key, statistics_key = jax.random.split(key, 4)
    rows = contract_rows(noise, params, contract_key)
    compared: list[Statistic] = []
    if all(row.status == "ok" for row in rows):
        sigma = noise.covariance(params)
        mean, sampled = mean_gradient(noise, params, mean_key, draws)
        rows += algebra_rows(sigma, mean, algebra_key)
        compared = statistics(noise, params, sigma, mean, sampled, statistics_key, draws)
    else:
        rows += [CheckRow(name, "skipped", remark="a check above failed") for name in ("covariance", "draws")]
    count = sum(statistic.z.size for statistic in compared)
    limit = largest_score(false_alarm, count)
    rows += [_row(statistic, limit) for statistic in compared]
    if compared and trees.count(params) > LARGEST_TRACE:
        rows.append(CheckRow("|draw - mean|^2: trace()", "skipped", remark=f"more than {LARGEST_TRACE} parameters"))
    name = type(noise).__name__
    return NoiseCheck(name, tuple(rows), draws if compared else 0, count, limit, false_alarm)


def _row(statistic: Statistic, limit: float) -> CheckRow:
    """Return the row of the direction with the largest |z|."""
    size = np.where(np.isnan(statistic.z), np.inf, np.abs(statistic.z))
    worst = int(np.argmax(size))
    value, expected, z = (float(x[worst]) for x in (statistic.value, statistic.expected, statistic.z))
    if size[worst] < limit:
        return CheckRow(statistic.name, "ok", value, expected, z)
    return CheckRow(
        statistic.name,
        "failed" if statistic.required else "differs",
        value,
        expected,
        z,
        statistic.advice,
    )
