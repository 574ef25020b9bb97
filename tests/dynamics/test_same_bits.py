"""The same seed gives the same bits on one core and on two, for a given number of XLA's threads."""

import os
import subprocess
import sys

PROGRAM = """
import hashlib, os, sys
if hasattr(os, "sched_setaffinity"):  # not everywhere
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
import jax, jax.numpy as jnp, numpy as np
import undertow as ut

keys = jax.random.split(jax.random.key(0), 4)
inputs, targets = jax.random.normal(keys[0], (1000, 200)), jax.random.normal(keys[1], (1000, 10))
start = {"inner": jax.random.normal(keys[2], (300, 200)) / 14, "outer": jax.random.normal(keys[3], (10, 300)) / 17}
net = ut.Regression(lambda p, x: p["outer"] @ jax.nn.relu(p["inner"] @ x), inputs, targets)
run = ut.descend(ut.Isotropic(net, 0.1), start, step_size=0.01, steps=3, key=1, progress=False)
print(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.params))).hexdigest())
print(float(net.loss(run.params)))
"""


def ran(cores: int, threads: int) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(cores)]
    environment = os.environ | {"NPROC": str(threads)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_the_same_bits_on_one_core_and_on_two():
    """A ReLU net 200-300-10 on 1,000 samples, whose matrix products XLA splits by its number of threads."""
    (bits, loss), (other_bits, _) = ran(1, 2), ran(2, 2)
    assert bits == other_bits
    single_bits, single_loss = ran(2, 1)
    assert single_bits != bits  # else the model does not show what the number of threads changes
    assert abs(float(single_loss) - float(loss)) < 1e-4 * float(loss)
