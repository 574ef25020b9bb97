"""check_noise: every noise of undertow passes, and planted errors raise with the failing part."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import KINDS, params, problem
from tests.kinds import point as point_of
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.covariance import Factored, SampleCovariance, ScaledIdentity
from undertow.noise import NoiseCheckError
from undertow.problem import batch_gradient

POINT = params()


FAST = ("minibatch of one", "minibatch of a population", "label noise, Gaussian", "isotropic", "sampled")
every_kind = [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize("kind", every_kind)
def test_every_noise_passes(kind):
    result = ut.check_noise(KINDS[kind](), point_of(kind), draws=1024)
    assert result.passed
    assert {row.status for row in result.rows} == {"ok"}
    assert result.draws == 1024
    assert all(abs(row.z) < result.limit for row in result.rows if row.z is not None)


@pytest.mark.slow
def test_double_precision(x64):
    kind = "batches inside environments"
    assert ut.check_noise(KINDS[kind](jnp.float64), point_of(kind, jnp.float64), draws=1024).passed


class OwnBatches(ut.AbstractNoise):
    """Minibatch noise written by hand, with mistakes that its fields switch on."""

    problem: ut.Problem
    batch_size: int = eqx.field(static=True, default=4)
    mistake: str = eqx.field(static=True, default="")

    def randomness(self, key, count, like=None):
        key = jax.random.key(3) if self.mistake == "ignores the key" else key
        return jax.random.randint(key, (count, self.batch_size), 0, self.problem.size)

    def gradient(self, params, slice):
        batch = trees.take(self.problem.data, slice)
        gradient = batch_gradient(self.problem.sample_loss, params, batch, single=False)
        factor = {"sum": self.batch_size, "half": 0.5}.get(self.mistake, 1)
        return trees.scale(float(factor), gradient)

    def mean(self, params):
        factor = 0.5 if self.mistake == "wrong mean" else 1.0
        return trees.scale(factor, self.problem.gradient(params))

    def covariance(self, params):
        return SampleCovariance(self.problem, params, 1.0 if self.mistake == "no batch size" else 1 / self.batch_size)


MEAN, VARIANCE = "mean of the draws: mean(params)", "variance of the draws: v'mv(v)"
MISTAKES_FOUND = {
    "sum": MEAN,
    "half": MEAN,
    "wrong mean": MEAN,
    "no batch size": VARIANCE,
    "ignores the key": "consecutive draws: correlation",
}


def test_a_noise_written_by_hand_passes():
    assert ut.check_noise(OwnBatches(problem()), POINT).passed


@pytest.mark.parametrize("mistake", MISTAKES_FOUND)
def test_a_mistake_raises_with_the_failing_part(mistake):
    with pytest.raises(NoiseCheckError, match=r"^`check_noise\(OwnBatches\)`: \d of 2[56] checks failed: ") as caught:
        ut.check_noise(OwnBatches(problem(), mistake=mistake), POINT)
    assert MISTAKES_FOUND[mistake] in {row.name for row in caught.value.result.failures}
    assert str(caught.value.result) in str(caught.value)


def test_the_factor_of_the_variance_is_in_the_message():
    with pytest.raises(NoiseCheckError, match=r"the variance of the draws is 0\.2\d+ times that of `covariance"):
        ut.check_noise(OwnBatches(problem(), mistake="no batch size"), POINT)


class OneLeafWrong(ut.AbstractNoise):
    """Isotropic noise on params with a large leaf and a small one, whose covariance is wrong on the small one."""

    problem: ut.AbstractProblem

    def randomness(self, key, count, like=None):
        return jax.random.split(key, count)

    def gradient(self, params, slice):
        return trees.add(self.problem.gradient(params), trees.standard_normal(slice, params))

    def covariance(self, params):
        ones = jax.tree.map(jnp.ones_like, params) | {"small": 1.5 * jnp.ones_like(params["small"])}
        flat, unravel = jax.flatten_util.ravel_pytree(ones)
        return Factored(jax.vmap(unravel, in_axes=1, out_axes=-1)(jnp.diag(flat)))


def test_a_small_leaf_is_checked():
    bowl = ut.Problem(lambda p, _: jnp.sum(p["large"] ** 2) + jnp.sum(p["small"] ** 2), jnp.zeros(1))
    with pytest.raises(NoiseCheckError) as caught:
        ut.check_noise(OneLeafWrong(bowl), {"large": jnp.ones(300), "small": jnp.ones(2)})
    (failed,) = [row for row in caught.value.result.failures if row.name == VARIANCE]
    assert failed.value == pytest.approx(1.0, abs=0.2)
    assert failed.expected == pytest.approx(1.5**2)


def test_a_broken_contract_ends_the_check():
    class Half(ut.AbstractNoise):
        problem: ut.AbstractProblem

        def randomness(self, key, count, like=None):
            return jax.random.split(key, count)

        def gradient(self, params, slice):
            return params.astype(jnp.float16)

        def covariance(self, params):
            return ScaledIdentity(jnp.array(1.0), params)

    with pytest.raises(NoiseCheckError, match="1 of 12 checks failed: gradient: shapes") as caught:
        ut.check_noise(Half(ut.Problem(lambda w, _: jnp.sum(w**2), jnp.zeros(1))), jnp.ones(2))
    result = caught.value.result
    assert result.draws == result.statistics == 0
    assert [row.name for row in result.rows[-2:]] == ["covariance", "draws"]
    assert {row.status for row in result.rows[-2:]} == {"skipped"}


def test_many_params_skip_the_traces():
    bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    result = ut.check_noise(ut.Isotropic(bowl, 0.1), jnp.ones(20_000), draws=128)
    skipped = [row.name for row in result.rows if row.status == "skipped"]
    assert len(skipped) == 6
    assert skipped[-1] == "|draw - mean|^2: trace()"


def test_noise_without_noise_passes():
    """One sample: no variance, and rounding errors only."""
    one = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, 0.1 * jnp.ones((1, 3)))
    assert ut.check_noise(ut.Minibatch(one, 2), jnp.array([1.0, 100.0, -3.0]), draws=256).passed


def test_the_result_depends_on_the_key_alone():
    noise = KINDS["minibatch of one"]()
    first, again, other = (ut.check_noise(noise, POINT, key=key, draws=200) for key in (5, jax.random.key(5), 6))
    assert first == again
    assert first != other


def test_the_limit_follows_the_false_alarm_probability():
    noise = KINDS["isotropic"]()
    strict, loose = (ut.check_noise(noise, POINT, draws=200, false_alarm=level) for level in (1e-9, 1e-3))
    assert strict.limit > loose.limit > 3.5
    assert [row.z for row in strict.rows] == [row.z for row in loose.rows]
    assert np.isclose(strict.false_alarm, 1e-9)


MISTAKES = {
    "a problem": (
        lambda: ut.check_noise(problem(), POINT),
        r"`check_noise\(noise=Problem\(\.\.\.\)\)`: `noise` is a Problem; give a noise",
    ),
    "whole numbers": (
        lambda: ut.check_noise(KINDS["isotropic"](), jnp.arange(3)),
        "`check_noise`: `params` has dtype int32",
    ),
    "few draws": (
        lambda: ut.check_noise(KINDS["isotropic"](), POINT, draws=10),
        r"`check_noise\(draws=10\)`: the z-scores need 100 or more",
    ),
    "no key": (lambda: ut.check_noise(KINDS["isotropic"](), POINT, key="a"), r"`check_noise\(key='a'\)`"),
    "a probability above one": (
        lambda: ut.check_noise(KINDS["isotropic"](), POINT, false_alarm=2.0),
        r"`check_noise\(false_alarm=2.0\)`",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
