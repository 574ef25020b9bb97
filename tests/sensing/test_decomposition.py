"""The parts of a learnt matrix, the paper's sequences, the isometry constant, and bursts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.sensing.bursts import burst_probability
from undertow.sensing.decomposition import auxiliary, decompose
from undertow.sensing.ensembles import Correlated
from undertow.sensing.isometry import rip
from undertow.sensing.laws import two_point


def test_the_parts_sum_to_the_matrix(x64):
    sensing = ut.MatrixSensing(7, 10, [[0.5, 1.0], [-1.0, 2.0]], spectrum=[1.0, 0.5])
    u = jax.random.normal(jax.random.key(0), (7, 5))
    parts = decompose(sensing, u)
    v = sensing.problem.directions
    np.testing.assert_allclose(sensing.truth @ parts.invariant.T + v @ parts.spurious.T + parts.rest, u, atol=1e-12)
    np.testing.assert_allclose(sensing.truth.T @ parts.rest, 0, atol=1e-12)
    measured = sensing.measure(u)
    np.testing.assert_allclose(parts.recovered.mean(), measured["true"])
    np.testing.assert_allclose(parts.leaked.mean(), measured["spurious"])
    np.testing.assert_allclose(jnp.linalg.norm(parts.rest), measured["rest"])
    np.testing.assert_allclose(jnp.sum(parts.singular_values() ** 2), jnp.sum(parts.invariant**2))
    signed = decompose(sensing, {"U": u, "V": 2 * u})
    np.testing.assert_allclose(signed["V"].leaked, 4 * signed["U"].leaked)


def test_the_true_signal_follows_the_predicted_growth():
    """Without spurious signals and measurement noise a run follows R_t within the envelopes of Lemma 5."""
    sequences = auxiliary(0.1, steps=100, law=two_point(1.0, 4.0), delta=0.01)
    u = jnp.array([[1e-3]])
    for t in range(60):
        np.testing.assert_allclose(u[0, 0], sequences.growth[t], rtol=1e-4)
        u = u - 0.1 * (u @ u.T - 1) @ u
    early = sequences.growth < 1 / 3
    assert (sequences.lower[early] >= 5 / 6 * sequences.growth[early]).all()
    assert (sequences.upper[early] <= 7 / 6 * sequences.growth[early]).all()
    np.testing.assert_allclose(
        sequences.line, np.maximum(1e-3, 40 * 5 * 0.01 * np.sqrt(2) * sequences.growth), rtol=1e-6
    )
    # the closed form of the logistic flow, of which the recursion is the Euler scheme
    fine = auxiliary(1e-3, steps=8000)
    time = 1e-3 * np.arange(8001)
    exact = 1 / np.sqrt(1 + (1e6 - 1) * np.exp(-2 * time))
    np.testing.assert_allclose(fine.growth, exact, rtol=6e-3)
    with pytest.raises(ValueError, match="take more of them"):
        sequences.reaches(1.5)


def test_the_envelopes_in_the_linear_regime():
    """upper + lower = 2 alpha (1 + eta)^t, and the upper rate is larger by eta/(32 log(1/alpha))."""
    eta, alpha, t = 0.1, 1e-6, np.arange(51)
    sequences = auxiliary(eta, steps=50, alpha=alpha)
    upper = alpha * (1 + eta + eta / (32 * np.log(1 / alpha))) ** t
    np.testing.assert_allclose(sequences.upper, upper, rtol=1e-6)
    np.testing.assert_allclose(sequences.lower, 2 * alpha * (1 + eta) ** t - upper, rtol=1e-6)


def test_the_first_step_above_a_size():
    sequences = auxiliary(0.1, steps=150)
    for square in (0.2, 0.5, 0.95):
        step = sequences.reaches(square)
        assert sequences.growth[step - 1] ** 2 < square <= sequences.growth[step] ** 2


BAD = {
    "params of another size": (lambda: decompose(ut.MatrixSensing(3, 1, [1.0]), jnp.eye(4)), "with 3 rows"),
    "no small start": (lambda: auxiliary(0.1, steps=3, alpha=0.0), "`alpha` must be"),
    "measurements that are no matrices": (lambda: rip(jnp.ones((3, 2)), 1), r"shape \(m, d, d\)"),
    "missing measurements": (lambda: rip(jnp.full((3, 2, 2), jnp.nan), 1), "finite numbers"),
    "a rank above d": (lambda: rip(jnp.ones((3, 2, 2)), 5), "take at most that"),
    "bursts of a law": (lambda: burst_probability([1.0], 0.1, steps=3), "give a `MatrixSensing`"),
    "bursts of a negative signal": (
        lambda: burst_probability(ut.MatrixSensing(3, 1, [1.0], spectrum=[-1.0]), 0.1, steps=3), "UU' cannot represent",
    ),
    "own measurements of odd shape": (lambda: ut.sensing_problem(jnp.ones((3, 2, 4)), jnp.ones(3)), "rank-one"),
    "targets of another length": (lambda: ut.sensing_problem(jnp.ones((3, 2)), jnp.ones(4)), "one target per"),
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
        lambda: ut.MatrixSensing(3, 1, [1.0], ensemble=Correlated(jnp.zeros((1, 3, 3)))), "vanish on a spurious",
    ),
    "a law of a wrong length": (
        lambda: ut.MatrixSensing(5, 1, [[1.0, 2.0, 3.0, 4.0]], spurious_rank=2), r"give 2 \(the diagonal\) or 3",
    ),
    "more columns than rows": (lambda: ut.MatrixSensing(3, 1, [1.0]).start(0.1, columns=4), "at most 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case, as_a_user):
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()
