"""Losses with penalties for invariance: IRM, V-REx and GroupDRO on any problem with groups.

The formulas are functions of one number per environment (its risk, or its slope) and of the environments' weights. The
three problems apply them to the risks of an `Environments`. `descend` (for example with `Isotropic` noise) and `settle`
accept them like any other problem. Weights are those of the environments: by default in proportion to their samples.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow._validate import Number, finite_number
from undertow.noise.environments import Environments
from undertow.problem import AbstractProblem, Regression

__all__ = ["IRM", "GroupDRO", "VREx", "irm_penalty", "smooth_max", "vrex_penalty", "worst_case_weights"]

Scalar = Float[Array, ""]

ArrayOfLibrary = Any
"""An array or a number of NumPy, JAX or PyTorch, which have no type in common."""


def vrex_penalty(risks: ArrayOfLibrary, weights: ArrayOfLibrary) -> ArrayOfLibrary:
    """Return the variance of the risks over environments, sum_e w_e (R_e - R)^2 (V-REx; Krueger et al. 2021).

    Arrays may be of NumPy, JAX or PyTorch.

    >>> import numpy as np
    >>> from undertow.grouped.penalties import vrex_penalty
    >>> print(vrex_penalty(np.array([1.0, 3.0]), np.array([0.5, 0.5])))
    1.0
    """
    mean = (weights * risks).sum()
    return (weights * (risks - mean) ** 2).sum()


def irm_penalty(slopes: ArrayOfLibrary, weights: ArrayOfLibrary) -> ArrayOfLibrary:
    """Return sum_e w_e slope_e^2, slope_e = d/ds R_e(s f) at s = 1, f the predictions (IRMv1; Arjovsky et al. 2019).

    The penalty is zero if scaling all predictions improves no environment. Arrays may be of NumPy, JAX or PyTorch.

    >>> import numpy as np
    >>> from undertow.grouped.penalties import irm_penalty
    >>> print(irm_penalty(np.array([1.0, -3.0]), np.array([0.5, 0.5])))
    5.0
    """
    return (weights * slopes**2).sum()


def worst_case_weights(risks: ArrayOfLibrary, weights: ArrayOfLibrary, sharpness: ArrayOfLibrary) -> ArrayOfLibrary:
    """Return q_e ~ w_e exp(sharpness R_e), the exponentiated weights of GroupDRO and the gradient of `smooth_max`.

    Arrays may be of NumPy, JAX or PyTorch.

    >>> import numpy as np
    >>> from undertow.grouped.penalties import worst_case_weights
    >>> print(worst_case_weights(np.array([0.0, np.log(3.0)]), np.array([0.5, 0.5]), 1.0))
    [0.25 0.75]
    """
    grown = weights * math.e ** (sharpness * (risks - risks.max()))
    return grown / grown.sum()


def smooth_max(risks: Float[Array, " e"], weights: Float[Array, " e"], sharpness: float | Float[Array, ""]) -> Scalar:
    """Return log(sum_e w_e exp(sharpness R_e))/sharpness, which is between the mean and the largest risk.

    It is the largest value of <q, R> - KL(q | w)/sharpness over all weights q, and at most log(1/min w)/sharpness below
    the maximum (GroupDRO; Sagawa et al. 2020). The smooth form replaces the exact maximum, because gradient flow
    needs a gradient, and the paper's weights, which accumulate over the steps, because a loss has no state.

    >>> import jax.numpy as jnp
    >>> from undertow.grouped.penalties import smooth_max
    >>> print(f"{smooth_max(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), 100.0):.3f}")
    1.993
    """
    return jax.nn.logsumexp(sharpness * risks + jnp.log(weights)) / sharpness


def _environments(function: str, environments: object) -> Environments:
    if not isinstance(environments, Environments):
        raise TypeError(
            f"`{function}(environments)`: got a {type(environments).__name__}; give `Environments(problem, groups)`."
        )
    return environments


def _means(environments: Environments, values: Float[Array, " samples"]) -> Float[Array, " e"]:
    """Return the mean over each environment's samples."""
    sums = jax.ops.segment_sum(values, environments.groups, environments.count)
    return sums / environments.sizes.astype(values.dtype)


class AbstractPenalised(AbstractProblem):
    """A loss that is a function of the risks of environments; its gradient is deterministic."""

    environments: eqx.AbstractVar[Environments]

    @abstractmethod
    def loss(self, params: PyTree) -> Scalar:
        """Return the risks and their penalty in one number."""

    def gradient(self, params: PyTree) -> PyTree:
        return jax.grad(self.loss)(params)

    def risks(self, params: PyTree) -> Float[Array, " e"]:
        """Return R_e, the mean loss over each environment."""
        return _means(self.environments, self.environments.problem.losses(params))

    def check(self, params: PyTree) -> None:
        self.environments.problem.check(params)


class VREx(AbstractPenalised):
    """The loss sum_e w_e R_e + penalty * Var_e(R_e), with a penalty on risks that differ between environments.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.grouped.penalties import VREx
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2, jnp.array([0.0, 1.0, 4.0]))
    >>> fair = VREx(ut.Environments(problem, jnp.array([0, 0, 1])), penalty=1.0)
    >>> print(fair.risks(jnp.array(2.0)), f"{fair.loss(jnp.array(2.0)):.2f}")
    [2.5 4. ] 3.50
    """

    environments: Environments
    penalty: Float[Array, ""]

    def __init__(self, environments: Environments, penalty: Number):
        self.environments = _environments("VREx", environments)
        finite_number("VREx", "penalty", penalty)
        self.penalty = jnp.asarray(penalty, environments.weights.dtype)

    def loss(self, params: PyTree) -> Scalar:
        risks = self.risks(params)
        weights = self.environments.weights.astype(risks.dtype)
        return jnp.vdot(weights, risks) + self.penalty.astype(risks.dtype) * vrex_penalty(risks, weights)


class IRM(AbstractPenalised):
    """The loss of IRMv1: sum_e w_e R_e + penalty * sum_e w_e (d/ds R_e(s f))^2 at s = 1, s a scale on all predictions.

    **Arguments:** the environments of a `Regression`, whose slope is E_e[f (f - y)]; or those of any other problem
    together with `scaled(params, sample, scale)`, its loss with the predictions multiplied by `scale`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.grouped.penalties import IRM
    >>> line = ut.Regression(lambda w, x: w * x, inputs=jnp.ones(4), targets=jnp.array([1.0, 1.0, 3.0, 3.0]))
    >>> irm = IRM(ut.Environments(line, jnp.array([0, 0, 1, 1])), penalty=1.0)
    >>> print(irm.slopes(jnp.array(2.0)), irm.loss(jnp.array(2.0)))
    [ 2. -2.] 4.5
    """

    environments: Environments
    penalty: Float[Array, ""]
    scaled: Callable[[PyTree, PyTree, Array], Scalar] | None

    def __init__(
        self,
        environments: Environments,
        penalty: Number,
        scaled: Callable[[PyTree, PyTree, Array], Scalar] | None = None,
    ):
        self.environments = _environments("IRM", environments)
        finite_number("IRM", "penalty", penalty)
        if scaled is None and not isinstance(environments.problem, Regression):
            raise TypeError(
                f"`IRM(environments)`: the predictions of a {type(environments.problem).__name__} are not known; give "
                "`scaled(params, sample, scale)`, its loss with predictions times scale."
            )
        self.penalty = jnp.asarray(penalty, environments.weights.dtype)
        self.scaled = scaled

    def slopes(self, params: PyTree) -> Float[Array, " e"]:
        """Return d/ds R_e(s f) at s = 1 for every environment."""
        problem, scaled = self.environments.problem, self.scaled
        one = jnp.ones((), jnp.result_type(*jax.tree.leaves(params)))

        def slope(sample: PyTree) -> Scalar:
            if scaled is not None:
                return jax.grad(lambda s: scaled(params, sample, s))(one)
            assert isinstance(problem, Regression)
            x, y = sample
            f = problem.predict(params, x)
            return jnp.sum(f * (f - y))

        return _means(self.environments, chunks.map_samples(slope, problem.data, problem.chunk(params)))

    def loss(self, params: PyTree) -> Scalar:
        risks, slopes = self.risks(params), self.slopes(params)
        weights = self.environments.weights.astype(risks.dtype)
        return jnp.vdot(weights, risks) + self.penalty.astype(risks.dtype) * irm_penalty(slopes, weights)


class GroupDRO(AbstractPenalised):
    """A smooth maximum of the risks over environments: log(sum_e w_e exp(sharpness R_e))/sharpness; see `smooth_max`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.grouped.penalties import GroupDRO
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2, jnp.array([0.0, 0.0, 0.0, 4.0]))
    >>> robust = GroupDRO(ut.Environments(problem, jnp.array([0, 0, 0, 1])), sharpness=10.0)
    >>> print(robust.risks(jnp.array(1.0)), f"{robust.loss(jnp.array(1.0)):.2f}")
    [1. 9.] 8.86
    """

    environments: Environments
    sharpness: Float[Array, ""]

    def __init__(self, environments: Environments, sharpness: Number):
        self.environments = _environments("GroupDRO", environments)
        finite_number("GroupDRO", "sharpness", sharpness, least=1e-6)
        self.sharpness = jnp.asarray(sharpness, environments.weights.dtype)

    def loss(self, params: PyTree) -> Scalar:
        risks = self.risks(params)
        return smooth_max(risks, self.environments.weights.astype(risks.dtype), self.sharpness.astype(risks.dtype))
