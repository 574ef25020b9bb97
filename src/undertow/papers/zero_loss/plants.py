"""Plants of the claims of `zero_loss`."""

import jax
import jax.flatten_util
import jax.numpy as jnp

from undertow.manifold.drift import Parts
from undertow.noise.additive import noiseless
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.models import curves
from undertow.problem import Regression
from undertow.verification.claim import Plant
from undertow.verification.plant import replaced

__all__ = ["PLANTS"]

HERE = "undertow.papers.zero_loss.claims"


def _weaker_labels(factor: float | int):
    """Run an experiment with label noise of another strength."""
    return lambda right: (
        lambda noise, *args, **settings: right(LabelNoise(noise.problem, factor * noise.strength), *args, **settings)
    )


def _half_the_equations(right):
    """Remove every second equation."""

    def run(noise, *args, **settings):
        z, y = noise.problem.data
        mask = (jnp.arange(len(y)) % 2 == 0).astype(y.dtype)
        problem = Regression(noise.problem.predict, z * mask[:, None, None], y * mask[:, None])
        return right(noiseless(problem), *args, **settings)

    return run


def _gauss_newton(right):
    """Use a retraction with the derivative of Phi on the manifold and another derivative off it."""

    def end(problem, params):
        if not isinstance(problem, Regression):
            return right(problem, params)
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        residuals = lambda x: problem.residuals(unravel(x))

        def step(_, x):
            rows = jax.jacobian(residuals)(x)
            return x - rows.T @ jnp.linalg.solve(rows @ rows.T, residuals(x))

        return unravel(jax.lax.fori_loop(0, 12, step, flat))

    return end


def _parts(tangent: float | int, normal: float | int, mixed: float | int):
    """Multiply the three parts of the second derivative by factors."""
    scaled = lambda factor, part: jax.tree.map(lambda x: factor * x, part)
    return lambda right: (
        lambda *args, **settings: (
            lambda p: Parts(scaled(tangent, p.tangent), scaled(normal, p.normal), scaled(mixed, p.mixed))
        )(right(*args, **settings))
    )


def _swapped(right):
    """Use the normal part in place of the other two."""
    return lambda *args: (lambda p: Parts(p.normal, p.tangent, p.normal))(right(*args))


def _steeper_ellipse(right):
    """Use L = g^2 |grad g|^2/2, whose ln |H| is twice that of g^2/2 on the same ellipse."""

    def loss(x, _):
        g = x[0] ** 2 / 4 + x[1] ** 2 - 1
        return g**2 / 2 * (x[0] ** 2 / 4 + 4 * x[1] ** 2)

    return lambda: Isotropic(curves._alone(loss), 1.0)


PLANTS: dict[str, Plant] = {
    "label-noise-covariance": replaced(
        "undertow.noise.label.sampling.factor_of_size", lambda right: lambda *args: 0.0 * right(*args)
    ),
    "isotropic-covariance": replaced(
        "undertow.noise.isotropic.ScaledIdentity", lambda right: lambda amount, params: right(jnp.sqrt(amount), params)
    ),
    "additive-covariance": replaced(
        "undertow.covariance.Factored.mv",
        lambda right: lambda sigma, v: jax.tree.map(lambda b, x: jnp.sum(b**2, axis=-1) * x, sigma.columns, v),
    ),
    "dphi-projector": replaced(f"{HERE}.derivatives.end_of", _gauss_newton),
    "d2phi-signs": replaced(f"{HERE}.derivatives.parts_at", _parts(-1, 2, -1)),
    "fluctuations": replaced(f"{HERE}.fluctuations.descend", _weaker_labels(2**0.5)),
    "kernel-regime-bound": replaced(f"{HERE}.kernel_regime.descend", _half_the_equations),
    "label-noise-escapes": replaced(f"{HERE}.label_noise_escapes.descend", _weaker_labels(1e-3)),
    "uv-conserved": replaced(
        "undertow.papers.zero_loss.models.linear.weights", lambda right: lambda params: params[0] * params[1]
    ),
    "uv-rate": replaced(f"{HERE}.linear_model.descend", _weaker_labels(0.5**0.5)),
    "flow-minimises-l1": replaced(
        "undertow.papers.zero_loss.models.linear.LinearModel.rates",
        lambda right: lambda model: 4 * jnp.ones_like(model.truth),
    ),
    "recovery": replaced(
        "undertow.papers.zero_loss.models.linear.LinearModel.decayed", lambda right: lambda model, params, *_: params
    ),
    "second-fundamental-form": replaced(f"{HERE}.misprints.parts_at", _parts(0, 1, 1)),
    "limit-starts-at-phi": replaced(
        f"{HERE}.misprints.descend",
        lambda right: lambda *args, steps, every, **settings: right(*args, steps=steps // 10_000, every=1, **settings),
    ),
    "kernel-gradient": replaced(f"{HERE}.misprints.predict", lambda right: lambda p, z: right(p, z) / 2),
    "pl-constant": replaced(f"{HERE}.misprints.predict", lambda right: lambda p, z: right(p, z) * 5**0.5),
    "motor-speed": replaced(f"{HERE}.motor.SPEED", lambda speed: 4 * speed),
    "heavy-ball": replaced(
        f"{HERE}.motor.descend", lambda right: lambda *args, momentum, **settings: right(*args, **settings)
    ),
    "network-follows-limit": replaced(f"{HERE}.network.descend", _weaker_labels(0.5**0.5)),
    "isotropic-ellipse": replaced(f"{HERE}.plane.isotropic_ellipse", _steeper_ellipse),
    "mixed-circle": replaced(f"{HERE}.plane.mixed_circle", lambda right: lambda rho: right(rho / 2)),
    "label-noise-quarter": replaced(f"{HERE}.regularisers.second_derivative", _parts(1, 2, 1)),
    "isotropic-quarter": replaced("undertow.manifold.limit.Limit.parts", _parts(1, 2, 1)),
    "manifold-only": replaced(f"{HERE}.regularisers.parts_at", _swapped),
    "minibatch-null": replaced(
        "undertow.manifold.limit.Limit.drift",
        lambda right: lambda limit, params, **_: jax.tree.map(jnp.zeros_like, params),
    ),
    "equations-needed": replaced(
        f"{HERE}.sparse_recovery.cone_dimension",
        lambda right: lambda rng, d, k: (2 * k * float(jnp.log(d / k)) - 0.5, right(rng, d, k)[1]),
    ),
    "two-phases": replaced(
        f"{HERE}.two_phases.Isotropic", lambda right: lambda problem, scale: right(problem, 2**0.5 * scale)
    ),
}
