"""Compare the step sizes at which a ReLU network trains from an imbalanced start and from its noise equilibrium."""

import jax
import jax.numpy as jnp

import undertow as ut


def loss(p, sample):
    """Return the loss of one sample."""
    x, y = sample
    hidden = jax.nn.relu(p["w1"] @ x + p["b1"])
    hidden = jax.nn.relu(p["w2"] @ hidden + p["b2"])
    return jnp.sum((p["w3"] @ hidden - y) ** 2)


keys = jax.random.split(jax.random.key(0), 5)
x = jax.random.normal(keys[0], (512, 16))
task = ut.Problem(loss, (x, jnp.sin(x[:, :4]) + 0.3 * jax.random.normal(keys[1], (512, 4))))
start = {  # layers of very different scale
    "w1": jax.random.normal(keys[2], (64, 16)) / 16,
    "b1": jnp.zeros(64),
    "w2": jax.random.normal(keys[3], (64, 64)) / 16,
    "b2": jnp.zeros(64),
    "w3": 2 * jax.random.normal(keys[4], (4, 64)),
}
noise = ut.Minibatch(task, batch_size=8)
symmetries = ut.find_symmetries(task, start)  # every hidden neuron can be rescaled
for symmetry in symmetries:
    print("found:", symmetry.describe(start))
teleported = ut.equilibrium(noise, start, symmetries, step_size=0.01).params  # same function, balanced noise
print(f"loss {task.loss(start):.4f} before, {task.loss(teleported):.4f} after the teleport")


def finite_runs(params, step_size):
    """Return how many of 8 runs of 2,000 steps without warm-up stay finite, and their mean loss."""
    run = ut.descend(noise, params, step_size=step_size, steps=2000, key=1, seeds=8, observe={"loss": task.loss},
                     progress=False)  # fmt: skip
    return int((~run.diverged).sum()), run.observed["loss"][~run.diverged, -1].mean() if not run.diverged.all() else 0


print("step size   as initialised      teleported")
for step_size in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16):
    cells = [f"{count}/8, loss {value:.3f}" if count else "all diverge" for count, value in
             (finite_runs(p, step_size) for p in (start, teleported))]  # fmt: skip
    print(f"{step_size:9.4f}   {cells[0]:17s}   {cells[1]}")
