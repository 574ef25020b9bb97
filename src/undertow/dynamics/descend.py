"""SGD and other optimisers, for millions of steps and many seeds."""

from collections.abc import Callable

from jaxtyping import PyTree

from undertow._calls import checked_call
from undertow._validate import KeyLike, Number
from undertow.dynamics import drive
from undertow.dynamics.clock import StepSize
from undertow.noise.base import AbstractNoise
from undertow.optimisers.base import AbstractOptimiser
from undertow.optimisers.transformation import as_optimiser
from undertow.trajectory import ProgressReport, Trajectory

__all__ = ["descend"]


@checked_call("descend")
def descend(
    noise: AbstractNoise,
    params: PyTree | Callable = None,
    *,
    step_size: StepSize | None = None,
    steps: int,
    key: KeyLike | None = None,
    observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
    average: dict[str, Callable[[PyTree], PyTree]] | None = None,
    every: int | None = None,
    seeds: int | None = None,
    optimiser: AbstractOptimiser | tuple | None = None,
    optimiser_state: PyTree = None,
    momentum: Number = 0.0,
    weight_decay: Number = 0.0,
    progress: ProgressReport = None,
    lane_width: int | None = None,
) -> Trajectory:
    """Run SGD: theta+ = (1 - eta lambda) theta - eta g, with g a draw of the noise at theta; or another optimiser.

    With momentum beta: v+ = beta v + g + lambda theta, theta+ = theta - eta v.

    **Arguments:**

    - `noise`: the stochastic gradient.
    - `params`: a pytree of float arrays, or `init(key)` for one start per seed.
    - `step_size`: eta, a number or a schedule `eta(step)` such as those of optax.
    - `steps`: the number of updates.
    - `key`: a key or a whole number; seed i uses fold_in(key, i).
    - `observe`: functions of params, recorded at step 0 and after every `every` steps (None: at the end).
    - `average`: functions of params, averaged over all the steps between two observations.
    - `seeds`: the number of independent runs, on a leading axis; None for a single run without that axis, which is
      seed 0 up to rounding. On a CPU, results are bitwise identical for all numbers of seeds and all values of `every`,
      for a given number of XLA's threads: the number of cores, or the value of the environment variable `NPROC`. With
      another number of threads, and on an accelerator, they agree up to rounding.
    - `optimiser`: `SGD`, `RMSProp`, `Adam`, `AdamW`, or an optax transformation. The latter has its own step size:
      leave `step_size` out (the clocks `time` and `slow_time` are then NaN), or give it for the clocks alone.
    - `optimiser_state`: the state of the optimiser at the start of every run, such as `run.optimiser_state` of a single
      run; None for the optimiser's own. Bias correction assumes a state that starts at zero, so give an optimiser
      without it.
    - `momentum`, `weight_decay`: beta and lambda of SGD, as in PyTorch and optax: loss + lambda/2 |theta|^2.
    - `progress`: `report(done, total)`, called a few times per second; None shows a bar on a terminal after two
      seconds, False nothing.
    - `lane_width`: the number of seeds that advance together; the default is fixed on a CPU and fills an accelerator.

    **Returns** a `Trajectory`. `run.resume(steps=...)` continues it and is bitwise identical to a longer first run.
    Ctrl-C ends the run early, with a warning, and returns the steps so far. Divergence is tested at the end of each
    block of at most 1,000 steps and is reported as `run.diverged`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
    >>> run = ut.descend(ut.Minibatch(problem, batch_size=1), jnp.array(0.0), step_size=0.01, steps=2000, key=0,
    ...                  observe={"w": lambda w: w}, every=1000, seeds=100)
    >>> print(run.step, run.time, abs(run.observed["w"][:, -1].mean() - 2) < 0.05)
    [   0 1000 2000] [ 0. 10. 20.] True
    >>> longer = run.resume(steps=1000)
    >>> print(longer.step)
    [   0 1000 2000 3000]
    """
    if isinstance(noise, Trajectory):
        raise TypeError("`descend(run, ...)`: a run continues with `run.resume(steps=...)` now.")
    run = drive.start_run(
        "descend",
        noise,
        params,
        step_size=step_size,
        key=key,
        observe=observe,
        average=average,
        every=every,
        seeds=seeds,
        optimiser=as_optimiser("descend", optimiser, momentum, weight_decay),
        optimiser_state=optimiser_state,
        lanes_of=lane_width,
    )
    return drive.advance_run(run, steps, progress)
