"""Plants of the claims of `heterogeneity`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from undertow.verification.claim import Plant
from undertow.verification.plant import replaced

__all__ = ["PLANTS"]


_CLAIMS = "undertow.papers.heterogeneity.claims"


def _upper_halved(original):
    """Draw symmetric matrices with N(0, 1/2) off the diagonal."""

    def mirrored(white: np.ndarray) -> np.ndarray:
        scale = np.where(np.eye(white.shape[-1], dtype=bool), 1.0, np.sqrt(0.5))
        return original(white) * scale

    return mirrored


def _mean_law(_):
    """Give every environment the mean of the law."""
    return lambda law, key, count: jnp.broadcast_to(law.mean(), (count, law.size))


def _with(**settings):
    """Override these settings of a class."""
    return lambda original: lambda *arguments, **options: original(*arguments, **(options | settings))


def _many_measurements(original):
    return lambda d, m, *rest, **settings: original(d, 10_000 * m, *rest, **settings)


def _negative_part_frozen(original):
    """Keep the part VV' of UU' - VV' constant."""

    def pull(g, params):
        moved = original(g, params)
        return moved | {"V": jnp.zeros_like(moved["V"])} if isinstance(moved, dict) else moved

    return pull


def _equal_size(noise):
    """Return the batch size, which is that of every environment where batches are whole environments of equal size."""
    return noise.batch_size or noise.problem.size // noise.count


def _without_noise(_):
    """Take the step of infinitely many measurements in one environment."""

    def single(sensing, params, z, sizes, square):
        return sensing.ensemble.apply(sensing.problem.residual(params) - sensing.problem.spurious(sizes))

    return single


def _random_signs(_):
    return lambda key, shape=(), dtype=float: jax.random.rademacher(key, shape).astype(dtype)


def _equal_shares(right):
    """Compute the rates of growth with equal weights of the groups."""
    return lambda moments, *args, **settings: right(
        dataclasses.replace(moments, sizes=np.ones_like(moments.sizes)), *args, **settings
    )


def _shuffled_groups(right):
    """Give the rows groups that are drawn at random."""
    return lambda function, X, y, groups: right(function, X, y, np.random.default_rng(0).permutation(groups))


PLANTS: dict[str, Plant] = {
    "two-phase-law": replaced(f"{_CLAIMS}.grouped_data.growth_phases", _equal_shares),
    "invariant-regressor": replaced("undertow.grouped.data.moments_of", _shuffled_groups),
    # environments that do not differ
    "filtering-by-spread": replaced("undertow.sensing.laws.Table.draw", _mean_law),
    "typical-growth": replaced("undertow.sensing.laws.Table.draw", _mean_law),
    # twice as many steps of half the size
    "filtering-by-step": replaced(
        f"{_CLAIMS}.filtering.ends",
        lambda original: lambda task, step_size, steps, *rest: original(task, step_size / 2, 2 * steps, *rest),
    ),
    # pooled batches for both
    "invariant-or-mean": replaced(f"{_CLAIMS}.solutions.MatrixSensing", _with(pooled=True)),
    "pooled-near-neither": replaced(f"{_CLAIMS}.solutions.MatrixSensing", _many_measurements),
    # runs that end when the larger eigenvalue is learnt, before the smaller one is
    "condition-number": replaced(
        f"{_CLAIMS}.solutions.ends",
        lambda original: (
            lambda task, step_size, steps, *rest, **settings: original(
                task, step_size, min(steps, 200), *rest, **settings
            )
        ),
    ),
    "indefinite-signal": replaced("undertow.sensing.matrix_sensing.pull", _negative_part_frozen),
    # a lower end 24/Var s
    "paper-window-empty": replaced(
        f"{_CLAIMS}.windows.paper_window",
        lambda original: lambda law: (original(law)[0] / (1 + abs(float(law.mean()[0]))), original(law)[1]),
    ),
    # runs of 4,000 steps, whatever number is requested
    "finite-time-transition": replaced(
        f"{_CLAIMS}.windows.phase_diagram",
        lambda original: lambda *arguments, steps, **settings: original(*arguments, steps=4000, **settings),
    ),
    "environment-covariance": replaced(
        "undertow.noise.environments.Environments.covariance",
        lambda right: lambda noise, params: noise.pooled(_equal_size(noise)).covariance(params),
    ),
    # the chi-square is replaced by its mean
    "exact-law": replaced(
        "undertow.sensing.matrix_sensing._chi_square", lambda _: lambda key, m, shape, dtype: jnp.full(shape, m, dtype)
    ),
    # the step of the loss (2)
    "invariant-grows-first": replaced(
        "undertow.sensing.matrix_sensing.pull", lambda original: lambda g, params: original(2 * g, params)
    ),
    # a spurious signal with half the mean
    "pooled-stays-away": replaced(
        f"{_CLAIMS}.phases.two_point", lambda original: lambda mean, *rest: original(mean / 2, *rest)
    ),
    # measurements that are not symmetric
    "recovery-rate": replaced(f"{_CLAIMS}.phases.MatrixSensing", _with(ensemble="full")),
    # no noise regenerates the spurious signal
    "bursts-return": replaced("undertow.sensing.matrix_sensing.MatrixSensing._single", _without_noise),
    "burst-tail": replaced(
        f"{_CLAIMS}.long_runs.tail_exponent", lambda original: lambda *arguments: original(*arguments) / 2
    ),
    # a law without entries off the diagonal
    "off-diagonal-signal": replaced(
        f"{_CLAIMS}.off_diagonal._law", lambda original: lambda p, rank, turning: original(p, rank, False)
    ),
    "quadratic-net": replaced(f"{_CLAIMS}.quadratic_network.QuadraticNet", _with(pooled=True)),
    "quadratic-net-constants": replaced("jax.random.normal", _random_signs),
    # symmetric measurements that are isotropic
    "symmetric-measurements": replaced(f"{_CLAIMS}.misprints._mirrored", _upper_halved),
    # the fitted model without X: at UU' = A* it predicts <A*, A*> = 2 for every measurement
    "fitted-model": replaced(f"{_CLAIMS}.misprints._model", lambda _: lambda x, product: np.full(x.shape[:2], 2.0)),
    # environments without A*
    "spurious-signal-alone": replaced(
        f"{_CLAIMS}.misprints._environment", lambda _: lambda signal, size, spurious: size[:, None, None] * spurious
    ),
    # the bracket of (42) as printed
    "controller-event": replaced(
        f"{_CLAIMS}.controller._factors",
        lambda _: lambda p, sizes: 1 + p.step_size * (sizes + 2 * p.step_size),
    ),
    # squares of cosines
    "random-overlap": replaced(
        f"{_CLAIMS}.overlap._overlap", lambda original: lambda first, second: original(first, second) ** 2
    ),
    # a quarter of the mean square, whose gradient is G U
    "sensing-factor-two": replaced(
        f"{_CLAIMS}.sensing_factor_two._loss", lambda original: lambda residuals: original(residuals) / 2
    ),
}
