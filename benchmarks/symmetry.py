"""Tr[Sigma A] of every neuron of a 784-512-10 network at batch 1,024: taps against per-sample gradients."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, interleaved, save
from undertow.symmetry.powers import powers

BATCH, INPUTS, HIDDEN, OUTPUTS = 1024, 784, 512, 10


def loss(p: dict, sample: Any) -> jax.Array:
    x, y = sample
    hidden = jax.nn.relu(p["in"] @ x + p["bias"])
    scores = p["out"] @ hidden + p["last"]
    return jax.nn.logsumexp(scores) - scores[y]


def main() -> list[tuple[str, str, str]]:
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "in": jax.random.normal(keys[0], (HIDDEN, INPUTS)) / INPUTS**0.5,
        "bias": jnp.zeros(HIDDEN),
        "out": jax.random.normal(keys[1], (OUTPUTS, HIDDEN)) / HIDDEN**0.5,
        "last": jnp.zeros(OUTPUTS),
    }
    data = (jax.random.normal(keys[2], (BATCH, INPUTS)), jax.random.randint(keys[3], (BATCH,), 0, OUTPUTS))
    problem = ut.Problem(loss, data)
    noise = ut.Minibatch(problem, 32)
    neurons = ut.Rescaling(lambda p: p["out"], lambda p: (p["in"], p["bias"]), neurons=True)

    gradient = eqx.filter_jit(lambda problem, p: problem.gradient(p))
    tapped = eqx.filter_jit(lambda noise, p: powers(noise, p, neurons))

    @eqx.filter_jit
    def per_sample(problem: ut.Problem, p: dict) -> Any:
        """Return the noise from sums of squares of vmap(grad)."""
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(p, problem.data)
        mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), each)
        second = jax.tree.map(lambda x: jnp.mean(x, axis=0), jax.vmap(lambda g: neurons.pair(g, g))(each))
        return jax.tree.map(lambda a, b: (a - b) / noise.batch_size, second, neurons.pair(mean, mean))

    fast, slow = tapped(noise, params), per_sample(problem, params)
    gaps = [float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in zip(fast[:2], slow, strict=True)]
    times = interleaved(
        {
            "gradient": (lambda: [jax.block_until_ready(gradient(problem, params)) for _ in range(5)], 5),
            "Tr[Sigma A], taps": (lambda: [jax.block_until_ready(tapped(noise, params)) for _ in range(5)], 5),
            "Tr[Sigma A], vmap(grad)": (lambda: jax.block_until_ready(per_sample(problem, params)), 1),
        },
        rounds=9,
    )
    ratios = {
        "taps / gradient": times["Tr[Sigma A], taps"] / times["gradient"],
        "vmap(grad) / taps": times["Tr[Sigma A], vmap(grad)"] / times["Tr[Sigma A], taps"],
    }
    assert np.isfinite(list(ratios.values())).all()
    save("symmetry", {"seconds": times, "ratios": ratios, "relative_difference": max(gaps)})
    rows = [("symmetry: " + name, in_words(value), "") for name, value in times.items()]
    bars = dict(zip(ratios, ("<= 1.3", ">= 20"), strict=True))
    rows += [("symmetry: " + name, f"{value:.3g}x", bars[name]) for name, value in ratios.items()]
    return [*rows, ("symmetry: taps against vmap(grad), relative difference", f"{max(gaps):.1e}", "<= 1e-5")]
