"""What comes out: the same type for an experiment (`descend`, `diffuse`) and a theory (`Limit.solve`)."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    import xarray

__all__ = ["Trajectory"]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Observations along a run, and where it ended.

    With `seeds` the arrays of `observed` have axes (seeds, times, ...) and the leaves of `params` (seeds, ...);
    a single run has no seeds axis. The times are the same for all seeds, in three units: `step` counts updates,
    `time` = sum of step sizes, `slow_time` = sum of their squares (the clock of the limiting diffusion).

    A run that left the finite numbers is data: `diverged` says which, `diverged_at` the step after which it was no
    longer finite (-1 where it was), `params` are those of the last finite block start, and observations from that
    step on are NaN. In `Limit.solve` a run also ends where the Hessian loses rank, and `diverged_at` is a slow time.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
    >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=0.1, steps=100, key=jax.random.key(0),
    ...                  observe={"w": lambda w: w}, every=50, seeds=4)
    >>> print(run.observed["w"].shape, run.step, run.diverged)
    (4, 3) [  0  50 100] [False False False False]
    """

    params: PyTree
    observed: dict[str, PyTree]
    step: np.ndarray
    time: np.ndarray
    slow_time: np.ndarray
    diverged: np.ndarray
    diverged_at: np.ndarray
    seeds: int | None
    clock: Literal["step", "time", "slow_time"] = "step"
    """Which of the three coordinates labels the times in `to_xarray`."""
    interrupted: bool = False
    """Whether Ctrl-C ended the run early; `descend(run, steps=...)` goes on from there."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How it was made: step size, steps, block length, lane width, wall seconds."""
    continuation: Any = field(default=None, repr=False)
    """What a driver needs to go on; None where a trajectory is complete."""

    def select(self, times: Any) -> "Trajectory":
        """The same trajectory observed only at the given positions along its times axis."""
        axis = 0 if self.seeds is None else 1
        index = np.atleast_1d(np.arange(len(self.step))[times])
        observed = jax.tree.map(lambda x: np.take(x, index, axis=axis), self.observed)
        return replace(
            self, observed=observed, step=self.step[index], time=self.time[index], slow_time=self.slow_time[index]
        )

    def to_xarray(self) -> "xarray.Dataset":
        """A dataset with dimensions (seed, step, ...) and coordinates step, time and slow_time.

        Observables that are pytrees become one variable a leaf, `name.path`; the final params are `params`,
        `params.path`. Runs that diverged are marked by `diverged` and `diverged_at`. An observable whose name is taken
        (by one of these, by a coordinate, or by an observable or a dimension before it) becomes `observed.name`.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
        >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=0.1, steps=4, key=0, every=2,
        ...                  observe={"params": lambda w: w})
        >>> print({name: variable.sizes["step"] if variable.ndim else "final"
        ...        for name, variable in run.to_xarray().items() if "params" in name})
        {'params': 'final', 'observed.params': 3}
        """
        import xarray

        seed_dims = () if self.seeds is None else ("seed",)
        times = (self.clock,)
        variables: dict[str, Any] = {}
        taken = {"step", "time", "slow_time", "seed", "diverged", "diverged_at"}
        _add_leaves(variables, taken, "params", self.params, seed_dims)
        taken.add("params")
        for name, values in self.observed.items():
            _add_leaves(variables, taken, name, values, (*seed_dims, *times))
        variables["diverged"] = (seed_dims, np.asarray(self.diverged))
        variables["diverged_at"] = (seed_dims, np.asarray(self.diverged_at))
        coordinates: dict[str, Any] = {name: (times, getattr(self, name)) for name in ("step", "time", "slow_time")}
        if self.seeds is not None:
            coordinates["seed"] = np.arange(self.seeds)
        facts = {name: value for name, value in self.facts.items() if value is not None}
        return xarray.Dataset(variables, coords=coordinates, attrs=facts)


def _add_leaves(variables: dict[str, Any], taken: set[str], name: str, tree: PyTree, leading: tuple[str, ...]) -> None:
    """One variable a leaf, with dimensions named after it; no name that is taken is used again."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
        full = ".".join([name, *parts])
        array = np.asarray(leaf)
        axes = range(array.ndim - len(leading))
        while taken & {full, *(f"{full}_{axis}" for axis in axes)}:
            full = f"observed.{full}"
        extra = [f"{full}_{axis}" for axis in axes]
        variables[full] = ((*leading, *extra), array)
        taken |= {full, *extra}
