"""The covariances of the noises that the limiting diffusion is stated for."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow.covariance import LabelCovariance
from undertow.noise.additive import Additive
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.papers._covariance_law import covariance_claim


def _label_part(noise: LabelNoise, params: PyTree, v: PyTree) -> PyTree:
    return LabelCovariance(noise.problem, params, noise.strength**2 / noise.batch_size).mv(v)


def _diagonal(noise: Additive, params: PyTree, v: PyTree) -> PyTree:
    return jax.tree.map(lambda b, x: jnp.sum(b**2, axis=-1) * x, noise.factor(params), v)


CLAIMS = (
    covariance_claim(
        "label-noise-covariance",
        "zero_loss",
        "Section 5, Eq. (12)",
        "Fresh label noise of strength δ adds δ²/b (1/n) ∑_i J_i'J_i to the minibatch covariance of a batch "
        "of b samples. At zero loss this is δ²/b times the Hessian.",
        "Cov g = δ²/b (1/n) ∑_i J_i'J_i + minibatch part",
        lambda net: {
            "signs, one sample": LabelNoise(net.problem, 0.8),
            "Gaussian, batch of 3": LabelNoise(net.problem, 0.8, batch_size=3, kind="gaussian"),
        },
        "Away from zero loss, too, the covariance is only the label part, δ²/b (1/n) ∑_i J_i'J_i.",
        dict.fromkeys(("signs, one sample", "Gaussian, batch of 3"), _label_part),
    ),
    covariance_claim(
        "isotropic-covariance",
        "zero_loss",
        "Section 5, Type I noise",
        "Isotropic noise of scale s has covariance s² I.",
        "Cov g = s² I",
        lambda net: {"isotropic": Isotropic(net.problem, 0.3)},
        "The scale s is the variance, Cov g = s I.",
        {"isotropic": lambda noise, params, v: trees.scale(noise.scale, v)},
    ),
    covariance_claim(
        "additive-covariance",
        "zero_loss",
        "Eq. (1)",
        "Noise σ(x) ξ with a factor σ that depends on the point has covariance σσ'.",
        "Cov g = σ(x) σ(x)'",
        lambda net: {
            "state-dependent factor": Additive(
                net.problem, lambda p: jax.tree.map(lambda x: jnp.stack([x, jnp.cos(x)], axis=-1), p)
            )
        },
        "Every coordinate has independent noise, so that the covariance is only the diagonal of σσ'.",
        {"state-dependent factor": _diagonal},
    ),
)
