"""Alternatives of the claims of `noise_equilibrium`."""

from plants import Plant, replaced

PLANTS: dict[str, Plant] = {
    "minibatch-covariance": replaced(
        "undertow.noise.minibatch.sampling.factor_of_size",
        lambda right: lambda problem, size, replace: right(problem, size, not replace),
    ),
}
