"""The covariance of one-environment batches, and of pooled ones."""

import jax.numpy as jnp

from undertow.noise.base import AbstractNoise
from undertow.noise.environments import Environments
from undertow.papers._covariance_law import covariance_claim
from undertow.papers.zero_loss.models.tanh_net import TanhNet


def _noises(net: TanhNet) -> dict[str, AbstractNoise]:
    groups = jnp.arange(net.problem.size) % 3
    hetero = Environments(net.problem, groups, weights=[0.5, 0.3, 0.2], batch_size=4)
    return {
        "one environment": hetero,
        "pooled": hetero.pooled(),
        "whole environments": Environments(net.problem, groups),
    }


CLAIMS = (
    covariance_claim(
        "environment-covariance",
        "heterogeneity",
        "Algorithms 1 and 2",
        "Batches of m samples from one environment have the covariance between environments plus the covariance "
        "within them divided by m; for pooled batches both parts are divided by m. Only in HeteroSGD does the part "
        "between environments remain at every batch size.",
        "Cov hetero = Var_e(g_e) + E_e[Cov_e]/m,  Cov pooled = (Var_e(g_e) + E_e[Cov_e])/m",
        _noises,
        "Batches from one environment have the covariance of pooled batches: both parts are divided by the batch size.",
        {"one environment": lambda noise, params, v: noise.pooled().covariance(params).mv(v)},
    ),
)
