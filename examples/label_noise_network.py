"""Predict how label noise flattens a network, and compare the limiting flow with 1e5 steps of SGD."""

import jax
import jax.numpy as jnp

import undertow as ut

jax.config.update("jax_enable_x64", True)


def network(p, x):
    """Return the prediction for one input; any function of params and one input works."""
    return p["outer"] @ jnp.tanh(p["inner"] @ x + p["bias"])


keys = jax.random.split(jax.random.key(0), 4)
inputs, labels = jax.random.normal(keys[0], (8, 5)), jax.random.normal(keys[1], (8,))
start = {
    "inner": jax.random.normal(keys[2], (20, 5)),
    "bias": jnp.zeros(20),
    "outer": jax.random.normal(keys[3], (20,)),
}
task = ut.Regression(network, inputs, labels)
noise = ut.LabelNoise(task, strength=0.5)


def sharpness(p):
    """Return tr H at zero loss, the mean squared gradient of the predictions."""
    rows = jax.vmap(jax.grad(network), in_axes=(None, 0))(p, inputs)
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(rows)) / 8


settled = ut.settle(task, start).params
step_size, steps = 0.01, 100_000
limit = ut.Limit(noise).solve(settled, slow_time=steps * step_size**2, observe={"sharpness": sharpness}, num_saves=5)
sgd = ut.descend(noise, settled, step_size=step_size, steps=steps, key=1, observe={"sharpness": sharpness},
                 every=steps // 5, seeds=16)  # fmt: skip
print("slow time  limit   SGD (mean of 16 runs)")
for k, t in enumerate(limit.slow_time):
    print(f"{t:9.1f}  {limit.observed['sharpness'][k]:6.2f}  {sgd.observed['sharpness'][:, k].mean():6.2f}")
