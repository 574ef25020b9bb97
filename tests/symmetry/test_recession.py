"""Directions without a finite equilibrium, against enumeration."""

import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.symmetry.recession import directions_at_infinity, is_diagonal


def test_directions_at_infinity_equal_those_of_enumeration(x64):
    """The enumeration covers all directions with small integer coefficients, for three random generators."""
    rng = np.random.default_rng(0)
    grid = np.array(list(np.ndindex(5, 5, 5))) - 2
    params = jnp.ones(4)
    counts = set()
    for _ in range(60):
        columns = rng.integers(-1, 2, (4, 3))
        noise = rng.integers(0, 2, 4)
        weights, decay = rng.integers(0, 2, 4), float(rng.integers(0, 2))
        symmetries = tuple(ut.Exponential(jnp.asarray(c, float)) for c in columns.T)
        directions = directions_at_infinity(symmetries, params * weights, jnp.asarray(noise, float), decay)
        change = grid @ columns.T  # (directions, entries)
        falls = (change * noise >= 0).all(1) & (change * weights * decay <= 0).all(1)
        falls &= ((change * noise) ** 2 + (change * weights * decay) ** 2).sum(1) > 0
        assert bool(directions) == bool(falls.any()), (columns, noise, weights, decay)
        counts.add(bool(directions))
        for direction in directions:
            moved = columns @ np.array(direction)
            assert (moved * noise >= -1e-9).all()
            assert (moved * weights * decay <= 1e-9).all()
        held = np.any([np.array(d) != 0 for d in directions], axis=0) if directions else np.zeros(3, bool)
        assert not falls[(grid[:, held] == 0).all(1)].any()  # the remaining generators have a finite equilibrium
    assert counts == {True, False}


def test_rounding_of_the_linear_programme_adds_no_generator(x64, monkeypatch):
    """Two generators of opposite sign have no equilibrium together; the third has one and must not be held."""
    from scipy import optimize

    right = optimize.linprog

    def rounded(*arguments, **options):
        solved = right(*arguments, **options)
        if solved.success:
            solved.x = solved.x + 1e-13 * np.arange(len(solved.x))
        return solved

    monkeypatch.setattr(optimize, "linprog", rounded)
    columns = np.array([[1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [1.0, -0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
    symmetries = tuple(ut.Exponential(jnp.asarray(c)) for c in columns.T)
    (direction,) = directions_at_infinity(symmetries, jnp.ones(5), jnp.ones(5), 0.0)
    assert direction[0] != 0
    assert direction[1] != 0
    assert direction[2] == 0


def test_a_direction_without_descent_beyond_rounding_is_no_direction(monkeypatch):
    """A linear programme that reports success at a point where nothing changes."""
    from scipy import optimize, sparse

    from undertow.symmetry.recession import _direction

    fooled = lambda *_, **__: optimize.OptimizeResult(success=True, x=np.array([1.0, 1.0, 0.0, 0.0]))
    monkeypatch.setattr(optimize, "linprog", fooled)
    assert _direction(sparse.csr_array(np.array([[1.0, -1.0]]))) is None
    np.testing.assert_array_equal(_direction(sparse.csr_array(np.array([[1.0, 0.0]]))), [1.0, 1.0])


def test_families_and_diagonals_are_diagonal_but_rotations_and_functions_are_not():
    u, w = (lambda p: p["u"]), (lambda p: p["w"])
    assert is_diagonal(ut.Rescaling(u, w))
    assert is_diagonal(ut.Scaling(u))
    assert is_diagonal(ut.Exponential(jnp.ones(2)))
    assert not is_diagonal(ut.DoubleRotation(u, w))
    assert not is_diagonal(ut.Exponential(lambda v: v))
