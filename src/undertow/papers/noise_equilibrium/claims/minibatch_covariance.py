"""The covariance of a minibatch gradient, with and without replacement."""

from jaxtyping import PyTree

from undertow import _trees as trees
from undertow.noise.minibatch import Minibatch
from undertow.papers._covariance_law import covariance_claim
from undertow.problem import AbstractSampled


def _exchanged(noise: Minibatch, params: PyTree, vector: PyTree) -> PyTree:
    """Return the covariance times `vector`, with N and N - 1 exchanged."""
    assert isinstance(noise.problem, AbstractSampled)
    n = noise.problem.size
    factor = n / (n - 1) if noise.replace else (n - 1) / n
    return trees.scale(factor, noise.covariance(params).mv(vector))


CLAIMS = (
    covariance_claim(
        "minibatch-covariance",
        "noise_equilibrium",
        "Section 3",
        "A batch of S samples drawn with replacement has gradient covariance Σ/S; without replacement it is "
        "(N - S)/(N - 1) times that.",
        "Cov g = c Σ/S,  Σ = E[∇l ∇l'] - ∇L ∇L',  c = 1 or (N - S)/(N - 1)",
        lambda net: {
            "with replacement": Minibatch(net.problem, 4),
            "without replacement": Minibatch(net.problem, 4, replace=False),
        },
        "N and N - 1 are exchanged: Σ has N - 1 in its denominator, and without replacement c is (N - S)/N.",
        dict.fromkeys(("with replacement", "without replacement"), _exchanged),
    ),
)
