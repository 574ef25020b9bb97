"""The covariance of a minibatch gradient, with and without replacement."""

from undertow.claims.covariance_law import covariance_claim
from undertow.noise.minibatch import Minibatch

CLAIMS = (
    covariance_claim(
        "minibatch-covariance",
        "noise_equilibrium",
        "Section 3",
        "A batch of S samples drawn with replacement has gradient covariance Sigma/S; without replacement it is "
        "(N - S)/(N - 1) times that.",
        "Cov g = c Sigma/S,  Sigma = E[grad l grad l'] - grad L grad L',  c = 1 or (N - S)/(N - 1)",
        lambda net: {
            "with replacement": Minibatch(net.problem, 4),
            "without replacement": Minibatch(net.problem, 4, replace=False),
        },
        "Batches without replacement have the covariance of batches with replacement, Sigma/S, and vice versa.",
        dict.fromkeys(
            ("with replacement", "without replacement"),
            lambda noise, params, v: Minibatch(noise.problem, noise.size, not noise.replace).covariance(params).mv(v),
        ),
    ),
)
