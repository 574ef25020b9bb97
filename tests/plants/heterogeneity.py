"""Alternatives of the claims of `heterogeneity`."""

import dataclasses
from typing import Any

import numpy as np

from plants import Plant, replaced


def _equal_shares(right: Any) -> Any:
    """The rates of growth with groups that count equally."""
    return lambda moments, *args, **settings: right(
        dataclasses.replace(moments, sizes=np.ones_like(moments.sizes)), *args, **settings
    )


def _without_groups(right: Any) -> Any:
    """The flow without its penalty: gradient flow on all rows."""
    return lambda moments, rho, *args, **settings: right(moments, 0 * rho, *args, **settings)


PLANTS: dict[str, Plant] = {
    "two-phase-law": replaced("undertow.claims.heterogeneity.grouped_data.growth_phases", _equal_shares),
    "invariant-regressor": replaced("undertow.environments.invariant_regressor.heterogeneity_flow", _without_groups),
    "environment-covariance": replaced(
        "undertow.noise.environments.Environments.covariance",
        lambda right: lambda noise, params: noise.pooled().covariance(params),
    ),
}
