"""Plants of the claims of `noise_equilibrium`."""

import math

import jax.numpy as jnp
import numpy as np

from undertow.noise.additive import noiseless
from undertow.papers.noise_equilibrium.claims.deep_linear import printed_layers
from undertow.papers.noise_equilibrium.claims.identities import EULER
from undertow.papers.noise_equilibrium.models.linear_nets import condensed, fan_in
from undertow.verification.claim import Plant
from undertow.verification.plant import replaced

__all__ = ["PLANTS"]

HOME = "undertow.papers.noise_equilibrium.claims"


def batches(module, factor):
    """Draw batches `factor` times as large, which divides the noise by `factor`."""

    def wrap(original):
        return lambda problem, size, **options: original(problem, max(1, round(size * factor)), **options)

    return replaced(f"{HOME}.{module}.Minibatch", wrap)


def decay(module, factor):
    """Take steps with `factor` times the weight decay."""

    def wrap(original):
        return lambda *arguments, weight_decay=0.0, **options: original(
            *arguments, weight_decay=factor * weight_decay, **options
        )

    return replaced(f"{HOME}.{module}.descend", wrap)


def flow(**factors):
    """Multiply parts of the flow by numbers, or change them by functions of all parts, the step size and the decay."""

    def wrap(original):
        def planted(noise, params, symmetry, eta, decay, beta):
            parts = dict(original(noise, params, symmetry, eta, decay, beta))
            return parts | {name: change(parts, eta, decay) for name, change in factors.items()}

        return planted

    return replaced("undertow.symmetry.flow._flow", wrap)


def continuous_decay(original):
    """Leave out the square of eta gamma: -4 eta gamma C."""

    def planted(self, params, gradient, *, step_size, weight_decay=0.0, momentum=0.0):
        exact = original(self, params, gradient, step_size=step_size, weight_decay=weight_decay, momentum=momentum)
        return exact - (step_size * weight_decay) ** 2 * self.charge(params)

    return planted


def same_noise(original):
    """Use the noise at the start of the orbit everywhere on the orbit."""

    def planted(noise, params, symmetry, amounts, eta, gamma):
        _, charge, _ = original(noise, params, symmetry, amounts, eta, gamma)
        _, _, here = original(noise, params, symmetry, jnp.zeros_like(amounts), eta, gamma)
        return -4 * gamma * charge + eta / 2 * here, charge, here

    return planted


def half_way(original):
    """Move half as far along the orbit as requested."""
    return lambda self, params, amount: original(self, params, amount / 2)


def no_sign(original):
    """Use the absolute value of the weight decay."""
    return lambda self, point, eta, gamma, total: original(self, point, eta, abs(gamma), total)


def printed_decay(original):
    """Add 2 gamma I to Gamma, and not (gamma S/eta) I."""
    return lambda noise, params, symmetry, *, step_size, weight_decay: original(
        noise, params, symmetry, step_size=step_size, weight_decay=2 * weight_decay * step_size / noise.batch_size
    )


def print_of_theorem(original):
    """Return the layers of Eq. (18) as printed; all `widths` are the same."""

    def planted(product, inputs, noise, widths):
        matrices = (np.asarray(matrix) for matrix in (product, inputs, noise))
        return [jnp.asarray(layer) for layer in printed_layers(*matrices, len(widths) + 1, widths[0])]

    return planted


def print_of_norms(original):
    """Return the norms of the layers of Eq. (18) as printed."""
    layers = print_of_theorem(None)
    return lambda product, inputs, noise, depth: [
        jnp.sum(layer**2) for layer in layers(product, inputs, noise, [len(product)] * (depth - 1))
    ]


def descent(original):
    """Use gradient descent in place of SGD, for linear nets."""
    return lambda problem, size: noiseless(condensed(problem))


def equal_norms(original):
    """Use a weight decay that dominates the noise: gamma S/eta is far above the noise moments."""
    return lambda *arguments, **options: original(*arguments, weight_decay=0.2, **options)


def all_linear(original):
    """Replace every activation by the identity."""
    return dict.fromkeys(original, original["linear"])


def as_printed(original):
    """Use Eq. (21) and (23) as printed, without the contribution of the fluctuations."""

    def planted(*arguments, **options):
        theory = original(*arguments, **options)
        return type(theory)(**(vars(theory) | {"shift": theory.printed, "balance": theory.push}))

    return planted


def slower(original):
    """Shorten the steps by a relative amount of order sqrt(eta)."""
    return lambda *arguments, step_size, **options: original(
        *arguments, step_size=step_size * (1 - 0.3 * math.sqrt(step_size)), **options
    )


PLANTS: dict[str, Plant] = {
    "charge-conserved": replaced(f"{HOME}.identities.RUNGE_KUTTA", lambda original: EULER),
    "step-identity": replaced("undertow.symmetry.generators.AbstractSymmetry.change", continuous_decay),
    "expected-change": flow(per_step=lambda parts, eta, gamma: eta * parts["rate"]),
    "discrete-fixed-point": replaced(f"{HOME}.discrete_time.Model.change", no_sign),
    "decay-in-the-balance": decay("weight_decay", 0.5),
    "charge-relaxes": batches("convergence", 2),
    "charge-follows": replaced(
        f"{HOME}.convergence.Teacher",
        lambda original: lambda scale, drift, diffusion: original(scale, drift, math.sqrt(2) * diffusion),
    ),
    "rows-and-columns": batches("factorisation", 2),
    "factors-balance": replaced(f"{HOME}.factorisation.equilibrium", printed_decay),
    "vectors-decay": batches("two_vectors", 2),
    "hessian-trace": replaced(
        f"{HOME}.factorisation._loss", lambda original: lambda params, sample: original(params, sample) / 2
    ),
    "one-fixed-point": replaced(f"{HOME}.fixed_point._along", same_noise),
    "equilibrium-at-infinity": replaced("undertow.symmetry.generators.AbstractDiagonal.orbit", half_way),
    "start-forgotten": replaced(f"{HOME}.fixed_point.Task.population", lambda original: lambda self: self.expected()),
    "minibatch-covariance": replaced(
        "undertow.noise.sampling.factor_of_size",
        lambda original: lambda problem, size, replace: original(problem, size, replace) * (1 - 1 / problem.size),
    ),
    "charge-factor-two": flow(noise=lambda parts, eta, gamma: 2 * parts["noise"]),
    "stationary-condition": decay("weight_decay", 0.5),
    "equilibration-time": replaced(
        f"{HOME}.misprints.Minibatch", lambda original: lambda problem, size: original(problem, min(size, 4))
    ),
    "orbit-eigenvalues": replaced(f"{HOME}.misprints.expm", lambda original: lambda matrix: original(matrix / 2)),
    "deep-linear-norms": replaced(f"{HOME}.deep_linear.deep_linear", print_of_theorem),
    "deep-norms": replaced(f"{HOME}.deep_norms.deep_linear_norms", print_of_norms),
    "deep-norms-digits": replaced(f"{HOME}.deep_norms.Minibatch", descent),
    "two-layer-alignment": replaced(f"{HOME}.alignment.descend", equal_norms),
    "latent-alignment": replaced("undertow.papers.noise_equilibrium.models.autoencoder.ACTIVATIONS", all_linear),
    "latent-fresh-data": replaced("undertow.papers.noise_equilibrium.models.autoencoder.ACTIVATIONS", all_linear),
    "norm-ratio": replaced(
        f"{HOME}.norm_ratio._run",
        lambda original: lambda parameters, phi, key, descent=False: original(parameters, phi, key, descent=True),
    ),
    "norm-ratio-settings": replaced(
        f"{HOME}.norm_ratio._run",
        lambda original: lambda parameters, phi, key, descent=False: original(parameters, phi, key, descent=True),
    ),
    "scale-growth": batches("scale_growth", 25),
    "warmup": replaced(f"{HOME}.warmup.kaiming", lambda original: fan_in),
    "sharpness-of-starts": replaced(
        f"{HOME}.starts._variances",
        lambda original: lambda n, d: original(n, d) | {"variances 1 and 1/n": (1 / d, 1 / n)},
    ),
    "broken-charge": replaced(f"{HOME}.broken_symmetry.deviation", as_printed),
    "two-curvatures": replaced(
        f"{HOME}.two_curvatures.Loss",
        lambda original: lambda curvatures, home: original(jnp.full_like(curvatures, curvatures[0]), home),
    ),
    "sde-weak-order": replaced(f"{HOME}.sde_weak_order.descend", slower),
}
