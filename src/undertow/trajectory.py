"""The result of a run: one type for experiments (`descend`, `diffuse`) and theory (`Limit.solve`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    import xarray

__all__ = ["ProgressReport", "Resumable", "Trajectory"]

ProgressReport = Callable[[int, int], object] | bool | None
"""A callback `report(done, total)`; None shows a bar on a terminal after two seconds, False nothing."""

Duration = float | int | np.generic | np.ndarray | jax.Array
"""Types accepted for a length of time."""

Variable = tuple[tuple[str, ...], np.ndarray]
"""The dimensions and the values of a variable of xarray."""


@runtime_checkable
class Resumable(Protocol):
    """The state of a run that can be continued."""

    def resume(self, steps: int | None, time: Duration | None, progress: ProgressReport) -> "Trajectory": ...


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Observations along a run, and where it ended.

    With `seeds` the arrays of `observed` have axes (seeds, times, ...) and the leaves of `params` (seeds, ...);
    a single run has no seeds axis. The times are the same for all seeds, in three units: `step` counts updates,
    `time` = sum of step sizes, `slow_time` = sum of their squares (the clock of the limiting diffusion).

    Divergence is data: `diverged` marks the runs that became non-finite, `diverged_at` is the step after which they
    were not finite (-1 for the others), `params` are those of the last finite block start, and observations from that
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
    """Whether Ctrl-C ended the run early; `resume` continues it."""
    facts: dict[str, str | float | None] = field(default_factory=dict)
    """How the run was made: function, noise, step size, steps, block length, lane width, wall seconds."""
    continuation: Resumable | None = field(default=None, repr=False)
    """The state from which `resume` continues; None where a trajectory cannot be continued."""

    def resume(
        self,
        *,
        steps: int | None = None,
        time: Duration | None = None,
        progress: ProgressReport = None,
    ) -> "Trajectory":
        """Continue a run of `descend` by `steps`, or one of `diffuse` by `time`, and return the whole run.

        All settings are those of the first run, and the result has the same bits as one longer run.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
        >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=0.1, steps=100, key=0)
        >>> print(run.resume(steps=50).step)
        [  0 100 150]
        """
        if self.continuation is None:
            raise TypeError(f"`run.resume`: a run made by `{self.facts.get('made_by')}` cannot be continued.")
        return self.continuation.resume(steps, time, progress)

    def select(self, times: int | slice | Sequence[int] | np.ndarray) -> "Trajectory":
        """Return the trajectory with only the observations at the given positions along its times axis."""
        axis = 0 if self.seeds is None else 1
        index = np.atleast_1d(np.arange(len(self.step))[times])
        observed = jax.tree.map(lambda x: np.take(x, index, axis=axis), self.observed)
        return replace(
            self, observed=observed, step=self.step[index], time=self.time[index], slow_time=self.slow_time[index]
        )

    def to_xarray(self) -> "xarray.Dataset":
        """Return a dataset with dimensions (seed, step, ...) and coordinates step, time and slow_time.

        Observables that are pytrees become one variable per leaf, `name.path`; the final params are `params`,
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
        variables: dict[str, Variable] = {}
        taken = {"step", "time", "slow_time", "seed", "diverged", "diverged_at"}
        _add_leaves(variables, taken, "params", self.params, seed_dims)
        taken.add("params")
        for name, values in self.observed.items():
            _add_leaves(variables, taken, name, values, (*seed_dims, *times))
        variables["diverged"] = (seed_dims, np.asarray(self.diverged))
        variables["diverged_at"] = (seed_dims, np.asarray(self.diverged_at))
        coordinates: dict[str, Variable | np.ndarray] = {
            name: (times, getattr(self, name)) for name in ("step", "time", "slow_time")
        }
        if self.seeds is not None:
            coordinates["seed"] = np.arange(self.seeds)
        facts = {name: value for name, value in self.facts.items() if value is not None}
        return xarray.Dataset(variables, coords=coordinates, attrs=facts)


def _add_leaves(
    variables: dict[str, Variable], taken: set[str], name: str, tree: PyTree, leading: tuple[str, ...]
) -> None:
    """Add one variable per leaf, with dimensions named after it; names in `taken` are not used again."""
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
