"""The result of a run: one type for experiments (`descend`, `diffuse`) and theory (`average`, `Limit.solve`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from undertow._table import ResultTable, html_of, number, text_of
from undertow._validate import instance, shown
from undertow.figures import results
from undertow.regime import Regime
from undertow.series import Series, named_leaves, series_of, table_row

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

    from undertow.noise.base import AbstractNoise
    from undertow.optimisers.base import AbstractOptimiser

__all__ = ["ProgressReport", "Resumable", "Trajectory"]

ProgressReport = Callable[[int, int], object] | bool | None
"""A callback `report(done, total)`; None shows a bar on a terminal after two seconds, False nothing."""

Duration = float | int | np.generic | np.ndarray | jax.Array
"""Types accepted for a length of time."""

CLOCKS = ("step", "time", "slow_time")

Variable = tuple[tuple[str, ...], np.ndarray]
"""The dimensions and the values of a variable of xarray."""


@runtime_checkable
class Resumable(Protocol):
    """The state of a run that can be continued."""

    def resume(self, steps: int | None, time: Duration | None, progress: ProgressReport) -> "Trajectory": ...

    def optimiser_state(self) -> PyTree: ...


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Observations along a run, and where it ended.

    With `seeds` the arrays of `observed` have axes (seeds, times, ...) and the leaves of `params` (seeds, ...);
    a single run has no seeds axis. The times are the same for all seeds, in three units: `step` counts updates,
    `time` = sum of step sizes, `slow_time` = sum of their squares (the clock of the limiting diffusion).

    Divergence does not raise an error. `diverged` marks the runs that became non-finite, and `diverged_at` is the step
    after which they were not finite (-1 for the others). The `params` of a diverged run are those at the start of the
    block in which it diverged, and its observations from `diverged_at` on are NaN. In `Limit.solve` a run also ends
    where the Hessian loses rank, and `diverged_at` is a slow time.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
    >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=0.1, steps=100, key=jax.random.key(0),
    ...                  observe={"w": lambda w: w}, every=50, seeds=4)
    >>> print(run.observed["w"].shape, run.step, run.diverged)
    (4, 3) [  0  50 100] [False False False False]
    >>> print(run)
    descend, Minibatch: 4 runs to step 100 (time 10, slow_time 1)
    observed  at step 0  at step 100  standard error
    w                 0        1.983          0.1354
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
    regime: Regime | None = None
    """The small parameters that a prediction rests on; None for an experiment."""

    def resume(
        self,
        *,
        steps: int | None = None,
        time: Duration | None = None,
        progress: ProgressReport = None,
    ) -> "Trajectory":
        """Continue a run of `descend` by `steps`, or one of `diffuse` by `time`, and return the whole run.

        All settings are those of the first run, and the result is bitwise identical to one longer run. The exception is
        the `average` over the interval between observations in which the first run ended: it agrees up to rounding.

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

    @property
    def optimiser_state(self) -> PyTree:
        """The state of the optimiser at the end, one per seed: for Adam a dict of `m` and `v`. None without a state."""
        return None if self.continuation is None else self.continuation.optimiser_state()

    def save(self, path: Path | str) -> Path:
        """Write the run to the zarr folder `path`, and return the path; an earlier run there is replaced.

        The folder is written beside its place, flushed and renamed, so that a process killed at any time leaves the old
        run or the new one. It has a checksum for every file, nothing is pickled, and `xarray.open_zarr(path)` reads it.
        The state of a run of `descend` or `diffuse` is stored too, and `Trajectory.load` continues it. Functions (the
        noise, observables, a schedule) are not stored: only hashes, by which `load` recognises them.

        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
        >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=0.1, steps=100, key=0)
        >>> path = run.save(tempfile.mkdtemp() + "/run.zarr")
        >>> print(path.name, ut.Trajectory.load(path).params == run.params)
        run.zarr True
        """
        from undertow.execution.runs import save_run

        _check_path("run.save", path)
        return save_run(path, self)

    @staticmethod
    def load(
        path: Path | str,
        *,
        noise: "AbstractNoise | None" = None,
        observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
        average: dict[str, Callable[[PyTree], PyTree]] | None = None,
        step_size: Callable | None = None,
        optimiser: "AbstractOptimiser | tuple | None" = None,
        like: PyTree = None,
    ) -> "Trajectory":
        """Return the run that `save` wrote, after checking the checksum of every file.

        A run that is only read, printed or plotted needs no argument. To continue it, give what cannot be stored, as
        it was given to `descend` or `diffuse`:

        - `noise`: the noise of the run. Another noise, or other data, raises an error.
        - `observe`, `average`: the observables, where the run has some.
        - `step_size`: the schedule, where the step size is one. A number is stored.
        - `optimiser`: the optax transformation, where the optimiser is one. Those of undertow are stored.
        - `like`: params of the same structure, where params are not made of dicts, lists and tuples; for instance the
          start of the run.

        A loaded run continues bitwise like an uninterrupted one, on the same device with the same number of threads
        (see `descend`).

        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
        >>> run = ut.descend(noise, jnp.array(0.0), step_size=0.1, steps=100, key=0)
        >>> path = run.save(tempfile.mkdtemp() + "/run.zarr")
        >>> longer = ut.Trajectory.load(path, noise=noise).resume(steps=50)
        >>> print(longer.step, longer.params == run.resume(steps=50).params)
        [  0 100 150] True
        """
        from undertow.execution.runs import load_run

        _check_path("Trajectory.load", path)
        return load_run(path, noise, observe, average, step_size, optimiser, like)

    def alive(self) -> np.ndarray:
        """Return whether each run had not diverged at each time, with axes (seeds, times), or (times,) for one run.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> cubic = ut.Problem(lambda w, x: -(w**3) / 3 + x, jnp.zeros(2))
        >>> run = ut.descend(ut.Minibatch(cubic, 1), jnp.array(1.0), step_size=0.5, steps=20, key=0, every=5)
        >>> print(run.alive(), run.diverged_at)
        [ True  True False False False] 10
        """
        position = self.step if np.all(np.isfinite(self.step)) else getattr(self, self.clock)
        return ~np.asarray(self.diverged)[..., None] | (position < np.asarray(self.diverged_at)[..., None])

    def series(self) -> dict[str, Series]:
        """Return the mean over seeds and its standard error for each real scalar observable, at each time.

        Runs that have diverged are left out from the time on at which they were not finite.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
        >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=0.1, steps=100, key=0, seeds=400,
        ...                  observe={"w": lambda w: w, "pair": lambda w: jnp.stack([w, 2 * w])}, every=50)
        >>> w = run.series()["w"]
        >>> print(list(run.series()), w.mean.round(1), w.standard_error.round(2), w.runs)
        ['w'] [0. 2. 2.] [0.   0.01 0.01] [400 400 400]
        """
        return series_of(self.observed, self.alive())

    def plot(
        self,
        *names: str,
        clock: Literal["step", "time", "slow_time"] | None = None,
        label: str = "",
        ax: "Axes | None" = None,
    ) -> "Axes":
        """Draw scalar observables against a clock: the mean over seeds with its 95% interval (Student's t).

        **Arguments:**

        - `names`: the observables to draw, by their names in `series`; all of them if none is given.
        - `clock`: `step`, `time` or `slow_time`; the clock of the run, or of the axes, if it is not given.
        - `label`: a text in front of the names in the legend.
        - `ax`: matplotlib axes to draw on, such as those that another `plot` returned; None makes a pyplot figure.

        The times at which runs diverged are marked by crosses. After its cross a run is not in the mean. A
        prediction, which has no steps to continue, is a dashed line.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
        >>> settings = dict(step_size=0.1, key=0, seeds=20, observe={"w": lambda w: w}, every=1)
        >>> run = ut.descend(ut.Minibatch(problem, 1), jnp.array(0.0), steps=50, **settings)
        >>> axes = run.plot(label="SGD", clock="time")
        >>> sde = ut.diffuse(ut.Minibatch(problem, 1), jnp.array(0.0), time=5.0, **settings)
        >>> axes = sde.plot(label="SDE", ax=axes)
        >>> print([text.get_text() for text in axes.get_legend().get_texts()], axes.get_xlabel())
        ['SGD w', '95% interval of the mean', 'SDE w'] time
        """
        series = self.series()
        unknown = [name for name in names if name not in series]
        if unknown or not series:
            raise ValueError(
                f"`run.plot({', '.join(map(repr, names))})`: the scalar observables of the run are "
                f"{', '.join(map(repr, series)) or 'none'}; give one of them, or add it to `observe` of the run."
            )
        axes = results.new_axes(ax)
        drawn = axes.get_xlabel()
        chosen = clock or (drawn if drawn in CLOCKS else self.clock)
        x = self._clock(chosen)
        shown = names or tuple(series)
        for name in shown:
            band = results.Band(x, series[name].mean, *series[name].interval())
            results.draw_band(axes, band, f"{label} {name}".strip(), "--" if self.continuation is None else "-")
        diverged = np.atleast_1d(self.diverged)
        if diverged.any():
            at = np.atleast_1d(self.diverged_at)[diverged].astype(float)
            if np.all(np.isfinite(self.step)):
                at = np.interp(at, self.step, x)
            results.draw_diverged(axes, at, diverged.size)
        results.label_axes(axes, chosen, axes.get_ylabel() or (shown[0] if len(shown) == 1 else ""))
        return axes

    def _clock(self, name: str) -> np.ndarray:
        if name not in CLOCKS or not np.all(np.isfinite(getattr(self, name))):
            known = [clock for clock in CLOCKS if np.all(np.isfinite(getattr(self, clock)))]
            raise ValueError(
                f"`run.plot(clock={name!r})`: a run made by `{self.facts.get('made_by')}` has no such clock; it has "
                f"{', '.join(map(repr, known))}. Two runs on the same axes need a clock that both have."
            )
        return getattr(self, name)

    def _tables(self) -> tuple[ResultTable, ...]:
        runs = "1 run" if self.seeds is None else f"{self.seeds} runs"
        title = ", ".join(str(self.facts[name]) for name in ("made_by", "noise") if self.facts.get(name))
        at = {name: getattr(self, name) for name in CLOCKS}
        ends = [f"{name} {number(x[-1])}" for name, x in at.items() if len(x) and np.isfinite(x[-1])]
        if ends:
            title += f": {runs} to {ends[0]}" + (f" ({', '.join(ends[1:])})" if ends[1:] else "")
        clock = at[self.clock]
        header = ("observed", *(f"at {self.clock} {number(clock[k])}" for k in (0, -1) if len(clock)), "standard error")
        series = self.series()
        rows = tuple(table_row(n, x, series.get(n), len(header)) for n, x in named_leaves(self.observed).items())
        table = ResultTable(title, header, rows, "l" + "r" * (len(header) - 1), self._notes())
        return (table,) if self.regime is None else (table, self.regime.table())

    def _notes(self) -> tuple[str, ...]:
        notes = []
        diverged = np.asarray(self.diverged)
        if diverged.any():
            first = number(np.asarray(self.diverged_at)[diverged].min())
            clock = "slow_time" if self.clock == "slow_time" else "step"
            notes.append(
                f"The run diverged at {clock} {first}." if self.seeds is None else
                f"{diverged.sum()} of {diverged.size} runs diverged, the first at {clock} {first}; a run "
                "that has diverged is left out of the means."
            )  # fmt: skip
        if self.interrupted:
            notes.append("The run was interrupted; `run.resume` continues it.")
        return tuple(notes)

    def __str__(self) -> str:
        return text_of(self._tables())

    def _repr_html_(self) -> str:
        return html_of(self._tables())

    def select(self, times: int | slice | Sequence[int] | np.ndarray) -> "Trajectory":
        """Return the trajectory with only the observations at the given positions along its times axis."""
        axis = 0 if self.seeds is None else 1
        index = _positions(times, len(self.step))
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
        coordinates: dict[str, Variable | np.ndarray] = {name: (times, getattr(self, name)) for name in CLOCKS}
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


def _positions(times: object, count: int) -> np.ndarray:
    """Return positions along the times axis, from 0 to count - 1; raise for others."""
    call = f"`run.select(times={shown(times)})`"
    if not isinstance(times, slice):
        index = np.asarray(times)
        wrong = index[(index < -count) | (index >= count)] if index.dtype.kind in "iu" else index
        if index.size == 0:
            raise ValueError(f"{call}: `times` is empty; give at least one position.")
        if index.dtype.kind not in "iub" or (index.dtype.kind == "b" and index.shape != (count,)):
            raise TypeError(f"{call}: `times` must be whole numbers, a slice, or {count} flags; give positions.")
        if index.dtype.kind in "iu" and wrong.size:
            raise ValueError(
                f"{call}: `times` has {wrong.flat[0]}; the run has positions from -{count} to {count - 1}."
            )
    return np.atleast_1d(np.arange(count)[times])  # ty: ignore[invalid-argument-type]


def _check_path(function: str, path: object) -> None:
    instance(function, "path", path, str | Path, "a path, such as 'run.zarr'")
