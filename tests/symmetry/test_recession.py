"""Directions without a finite equilibrium, against enumeration."""

import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.symmetry.recession import directions_at_infinity


def test_a_linear_programme_knows_which_directions_fall(x64):
    """Against brute force: all directions with small whole coefficients, for random signs of three generators."""
    rng = np.random.default_rng(0)
    grid = np.array(list(np.ndindex(5, 5, 5))) - 2
    params = jnp.ones(4)
    seen = set()
    for _ in range(60):
        columns = rng.integers(-1, 2, (4, 3))
        noise = rng.integers(0, 2, 4)
        weights, decay = rng.integers(0, 2, 4), float(rng.integers(0, 2))
        symmetries = tuple(ut.Exponential(jnp.asarray(c, float)) for c in columns.T)
        found = directions_at_infinity(symmetries, params * weights, jnp.asarray(noise, float), decay)
        change = grid @ columns.T  # (directions, entries)
        falls = (change * noise >= 0).all(1) & (change * weights * decay <= 0).all(1)
        falls &= ((change * noise) ** 2 + (change * weights * decay) ** 2).sum(1) > 0
        assert bool(found) == bool(falls.any()), (columns, noise, weights, decay)
        seen.add(bool(found))
        for direction in found:
            moved = columns @ np.array(direction)
            assert (moved * noise >= -1e-9).all()
            assert (moved * weights * decay <= 1e-9).all()
        held = np.any([np.array(d) != 0 for d in found], axis=0) if found else np.zeros(3, bool)
        assert not falls[(grid[:, held] == 0).all(1)].any()  # what is left has a finite equilibrium
    assert seen == {True, False}


def test_what_the_linear_programme_leaves_of_a_zero_is_no_member(x64, monkeypatch):
    """Two generators of opposite sign have no equilibrium together; the third has one and must not be held."""
    from scipy import optimize

    right = optimize.linprog

    def rounded(*given, **options):
        solved = right(*given, **options)
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
