"""The parts of a learnt matrix, the paper's sequences, the isometry constant, and bursts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.environments.bursts import burst_exponent, burst_probability
from undertow.environments.decomposition import auxiliary, decompose
from undertow.environments.isometry import rip
from undertow.noise.ensembles import Correlated, Goe
from undertow.noise.laws import Gaussian, Uniform, two_point


def test_the_parts_make_up_the_whole(x64):
    sensing = ut.MatrixSensing(7, 10, [[0.5, 1.0], [-1.0, 2.0]], spectrum=[1.0, 0.5])
    u = jax.random.normal(jax.random.key(0), (7, 5))
    parts = decompose(sensing, u)
    v = sensing.problem.directions
    np.testing.assert_allclose(sensing.truth @ parts.invariant.T + v @ parts.spurious.T + parts.rest, u, atol=1e-12)
    np.testing.assert_allclose(sensing.truth.T @ parts.rest, 0, atol=1e-12)
    seen = sensing.measure(u)
    np.testing.assert_allclose(parts.recovered.mean(), seen["true"])
    np.testing.assert_allclose(parts.leaked.mean(), seen["spurious"])
    np.testing.assert_allclose(jnp.linalg.norm(parts.rest), seen["rest"])
    np.testing.assert_allclose(jnp.sum(parts.singular_values() ** 2), jnp.sum(parts.invariant**2))
    both = decompose(sensing, {"U": u, "V": 2 * u})
    np.testing.assert_allclose(both["V"].leaked, 4 * both["U"].leaked)


def test_the_true_signal_grows_as_told():
    """Without spurious signals and measurement noise a run follows R_t; the envelopes hold it as Lemma 5 says."""
    told = auxiliary(0.1, steps=100, law=two_point(1.0, 4.0), delta=0.01)
    u = jnp.array([[1e-3]])
    for t in range(60):
        np.testing.assert_allclose(u[0, 0], told.growth[t], rtol=1e-4)
        u = u - 0.1 * (u @ u.T - 1) @ u
    early = told.growth < 1 / 3
    assert (told.lower[early] >= 5 / 6 * told.growth[early]).all()
    assert (told.upper[early] <= 7 / 6 * told.growth[early]).all()
    np.testing.assert_allclose(told.line, np.maximum(1e-3, 40 * 5 * 0.01 * np.sqrt(2) * told.growth), rtol=1e-6)
    # the closed form of the logistic flow, of which the recursion is the Euler scheme
    fine = auxiliary(1e-3, steps=8000)
    time = 1e-3 * np.arange(8001)
    exact = 1 / np.sqrt(1 + (1e6 - 1) * np.exp(-2 * time))
    np.testing.assert_allclose(fine.growth, exact, rtol=6e-3)
    with pytest.raises(ValueError, match="take more of them"):
        told.reaches(1.5)


def test_the_isometry_constant_of_measurements_with_a_known_one(x64):
    """X_i = a_i sqrt(D) E_i over an orthonormal basis of symmetric matrices: the constant is known for every rank."""
    d = 4
    basis = [np.outer(e, e) for e in np.eye(d)]
    for i, j in zip(*np.triu_indices(d, 1), strict=True):
        unit = np.zeros((d, d))
        unit[i, j] = unit[j, i] = 1 / np.sqrt(2)
        basis.append(unit)
    size = np.ones(len(basis))
    size[0], size[1] = 1.3, 0.5  # along two matrices of rank one
    x = jnp.asarray(np.stack([np.sqrt(s * len(basis)) * b for s, b in zip(size, basis, strict=True)]))
    found = rip(x, 1)
    np.testing.assert_allclose([found.least, found.most], 0.5, atol=1e-6)


def test_the_isometry_constant_is_in_the_bracket_and_falls_with_m():
    for rank in (1, 3):
        few, many = (rip(Goe().draw(jax.random.key(0), m, 6, jnp.float32), rank) for m in (200, 5000))
        assert 0 < many.least <= many.most < few.least <= few.most
        assert many.spread >= 0
    # no random matrix of the rank deviates more than the one found
    x = Goe().draw(jax.random.key(0), 200, 6, jnp.float32)
    drawn = jax.random.normal(jax.random.key(1), (5000, 6, 1))
    units = drawn @ jnp.swapaxes(drawn, 1, 2)
    units = units / jnp.linalg.norm(units, axis=(1, 2), keepdims=True)
    values = jnp.mean(jnp.tensordot(units, x, axes=((1, 2), (1, 2))) ** 2, axis=1)
    assert float(jnp.abs(values - 1).max()) <= rip(x, 1).least + 1e-5


@pytest.mark.parametrize("law", [two_point(0.5, 8.0), Uniform(-12.0, 12.0), Gaussian(0.2, 7.0)])
def test_the_burst_exponent_is_that_of_a_signal_that_is_damped(law):
    kappa = burst_exponent(law, 0.05)
    factors = np.abs(1 + 0.05 * (np.asarray(law.draw(jax.random.key(0), 400_000), np.float64) - 1)) ** kappa
    assert abs(factors.mean() - 1) < 5 * factors.std() / np.sqrt(len(factors))
    np.testing.assert_allclose(burst_exponent(two_point(1.0, 8.0), 0.05), 1.0, rtol=1e-6)


@pytest.mark.slow
def test_bursts_have_the_tail_of_the_damped_law():
    """Full runs at two spreads: the exponent of s - 1, not of s (which would be 0.37 and 0.60)."""
    for spread in (8.0, 10.0):
        sensing = ut.MatrixSensing(5, 1600, two_point(1.0, spread))
        run = ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=4000, key=0, seeds=256, lane_width=256,
                         every=10, observe={"leaked": lambda u: u[1] @ u[1]}, progress=False)  # fmt: skip
        size = np.sqrt(run.observed["leaked"][:, 40:])
        share = lambda level, size=size: (size > level).mean(1)
        groups = np.array_split(np.arange(256), 16)
        slopes = [np.log(share(0.06)[g].mean() / share(0.24)[g].mean()) / np.log(4) for g in groups]
        assert abs(np.mean(slopes) - 1) < 0.15


def test_the_burst_probability_of_certain_and_impossible_bursts_is_uncertain():
    """Of 16 runs without a burst: the probability may still be 1 - 0.025^(1/16), the exact 95 % limit."""
    sensing = ut.MatrixSensing(3, 1000, two_point(0.0, 1.0))
    limit = 1 - 0.025 ** (1 / 16)
    for level, share, interval in ((1e3, 0.0, (0, limit)), (1e-9, 1.0, (1 - limit, 1))):
        told = burst_probability(sensing, 0.05, steps=40, level=level, runs=16)
        assert told.value == share
        np.testing.assert_allclose(told.interval(), interval, atol=1e-9)
        assert 0.05 < told.standard_error < limit


@pytest.mark.slow
def test_the_burst_probability_is_that_of_full_runs():
    for spread in (5.0, 9.0):
        sensing = ut.MatrixSensing(6, 20_000, two_point(1.0, spread))
        run = ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=1200, key=0, seeds=256, lane_width=256,
                         every=1, observe={"leaked": lambda u: u[1] @ u[1]}, progress=False)  # fmt: skip
        full = np.nanmax(run.observed["leaked"][:, 200:], axis=1) > 0.5
        told = burst_probability(sensing, 0.05, steps=1000)
        assert abs(full.mean() - float(told.value)) < 0.15


BAD = {
    "params of another size": (lambda: decompose(ut.MatrixSensing(3, 1, [1.0]), jnp.eye(4)), "with 3 rows"),
    "no small start": (lambda: auxiliary(0.1, steps=3, alpha=0.0), "`alpha` must be"),
    "measurements that are no matrices": (lambda: rip(jnp.ones((3, 2)), 1), r"shape \(m, d, d\)"),
    "missing measurements": (lambda: rip(jnp.full((3, 2, 2), jnp.nan), 1), "finite numbers"),
    "a rank above d": (lambda: rip(jnp.ones((3, 2, 2)), 5), "take at most that"),
    "bursts of a law": (lambda: burst_probability([1.0], 0.1, steps=3), "give a `MatrixSensing`"),
    "bursts of a negative signal": (
        lambda: burst_probability(ut.MatrixSensing(3, 1, [1.0], spectrum=[-1.0]), 0.1, steps=3), "UU' cannot hold it",
    ),
    "own measurements of odd shape": (lambda: ut.sensing_problem(jnp.ones((3, 2, 4)), jnp.ones(3)), "rank-one"),
    "targets of another length": (lambda: ut.sensing_problem(jnp.ones((3, 2)), jnp.ones(4)), "give one each"),
    "masked measurements": (
        lambda: ut.sensing_problem(np.ma.masked_greater(np.eye(3), 0.5), np.ones(3)),
        "`measurements` has masked entries",
    ),
    "complex targets": (lambda: ut.sensing_problem(jnp.ones((3, 2)), jnp.ones(3) * 1j), "`targets` is complex"),
    "missing targets": (lambda: ut.sensing_problem(jnp.ones((3, 2)), jnp.full(3, jnp.nan)), "missing or infinite"),
    "an ensemble of another size": (
        lambda: ut.MatrixSensing(3, 1, [1.0], ensemble=Correlated(jnp.ones((1, 2, 2)))), "of size 3 x 3",
    ),
    "measurements blind to the signal": (
        lambda: ut.MatrixSensing(3, 1, [1.0], ensemble=Correlated(jnp.zeros((1, 3, 3)))), "do not see",
    ),
    "a law of a wrong length": (
        lambda: ut.MatrixSensing(5, 1, [[1.0, 2.0, 3.0, 4.0]], spurious_rank=2), r"give 2 \(the diagonal\) or 3",
    ),
    "more columns than rows": (lambda: ut.MatrixSensing(3, 1, [1.0]).start(0.1, columns=4), "at most 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_explained(what, as_a_user):
    call, said = BAD[what]
    with pytest.raises((ValueError, TypeError), match=said):
        call()
