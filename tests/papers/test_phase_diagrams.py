"""The experiments of the phase diagrams are those of the library, and their boundaries are right."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.execution.registry import diagrams
from undertow.execution.sweeps.spec import as_spec
from undertow.papers.heterogeneity import phase_diagram as hetero
from undertow.papers.noise_equilibrium import phase_diagram as stability
from undertow.papers.zero_loss import phase_diagram as recovery
from undertow.papers.zero_loss.models.linear import LinearModel, predict
from undertow.sensing.laws import two_point


@pytest.mark.slow
def test_a_run_of_hetero_is_a_run_of_descend():
    """The same noise, key and steps through the driver; steps are small, so that rounding does not grow."""
    key = jax.random.key(5)
    sensing = ut.MatrixSensing(6, m=8000, law=two_point(1.0, 2.0), dtype=jnp.float32)
    # seed 0 of `descend` draws from fold_in(key, 0)
    run = ut.descend(sensing, sensing.start(0.1), step_size=0.03, steps=40, key=key, seeds=1, progress=False,
                     observe={"seen": sensing.measure})  # fmt: skip
    one = jax.jit(partial(hetero.run, steps=40, d=6))
    other = one(jax.random.fold_in(key, 0), step_size=0.03, spread=2.0, alpha=0.1)
    np.testing.assert_allclose(other["true"], run.observed["seen"]["true"][0, -1], rtol=1e-4)
    np.testing.assert_allclose(other["spurious"], run.observed["seen"]["spurious"][0, -1], rtol=1e-4)


def test_idle_equations_do_not_change_a_recovery(x64):
    key = jax.random.key(3)
    inputs, signs = jax.random.split(key)
    d, most = 30, 20
    padded = jax.jit(partial(recovery.run, d=d, most=most))
    for n, sparsity in ((10, 3), (20, 2)):
        z = jax.random.normal(inputs, (most, d))[:n]
        truth = jnp.where(jnp.arange(d) < sparsity, jax.random.rademacher(signs, (d,), dtype=z.dtype), 0)
        model = LinearModel(ut.Regression(predict, z, z @ truth), truth)
        end = model.settle(model.decayed(model.start(1.0), 8.0, 1.0))
        alone = model.error(end) ** 2 / jnp.sum(truth**2)
        found = padded(key, n=float(n), sparsity=float(sparsity))
        np.testing.assert_allclose(found["error"], alone, rtol=1e-5)


def test_the_statistical_dimension_is_that_of_the_cone():
    """d - E|projection of g on the polar cone|^2 = E min_t |g - t subdifferential|^2, sampled."""
    d, k = 60, 6
    rng = np.random.default_rng(0)
    g = rng.normal(size=(4000, d))
    t = np.linspace(0, 4, 401)[:, None]
    distances = []
    for row in g:
        on = ((row[None, :k] - t) ** 2).sum(1)
        off = (np.maximum(np.abs(row[None, k:]) - t, 0) ** 2).sum(1)
        distances.append((on + off).min())
    mean, error = np.mean(distances), np.std(distances) / math.sqrt(len(distances))
    told = recovery.statistical_dimension(k, d)
    # the formula is an upper bound, and less than 2 sqrt(d/k) above it (Amelunxen et al., Theorem 4.3)
    assert mean - 4 * error < told < mean + 2 * math.sqrt(d / k) + 4 * error
    assert recovery.statistical_dimension(d, d) == pytest.approx(d)


def test_a_batch_shrinks_the_mean_square_of_a_residual_below_the_boundary():
    """E|a (1 - 2 eta s X)|^2 for the second moment X of a batch, by sampling, at the predicted step size: 1."""
    n, batch, s = 10, 10, 3.0
    eta = 1 / (s * (1 + (n + 1) / batch))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40_000, batch, n))
    first = np.einsum("kbi,kb->ki", x, x[:, :, 0]) / batch  # X e_1
    after = ((np.eye(n)[0] - 2 * eta * s * first) ** 2).sum(1)
    assert abs(after.mean() - 1) < 4 * after.std() / math.sqrt(len(after))


def test_the_teleport_keeps_the_function_and_lowers_the_stiffness():
    found = jax.jit(partial(stability.run, steps=5))(jax.random.key(0), step_size=0.001, imbalance=5.0)
    assert found["lives"] == found["lives_teleported"] == 1
    assert found["stiffness_teleported"] < found["stiffness"] / 3


@pytest.mark.parametrize("name", diagrams)
def test_usual_grids_are_specifications(name):
    diagram = diagrams[name]
    spec = as_spec(name, diagram.axes(5), seeds=2)
    assert spec.points == 25
    assert {axis.name for axis in spec.axes} == set(diagram.shown)


@pytest.mark.slow
def test_diagrams_from_the_command_line(tmp_path, capsys):
    from undertow.cli import main

    for name in diagrams:
        with pytest.raises(SystemExit) as status:
            main(["run", "phase-diagram", "--of", name, "--points", "3", "--seeds", "2", "--out", str(tmp_path)])
        assert status.value.code == 0
        (figure,) = tmp_path.glob(f"{name}-*/figure.svg")
        assert "predicted" in figure.read_text() or "residual" in figure.read_text()
    assert capsys.readouterr().out.count("figure:") == 3
