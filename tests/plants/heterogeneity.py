"""Alternatives of the claims of `heterogeneity`."""

from plants import Plant, replaced

PLANTS: dict[str, Plant] = {
    "environment-covariance": replaced(
        "undertow.noise.environments.Environments.covariance",
        lambda right: lambda noise, params: noise.pooled().covariance(params),
    ),
}
