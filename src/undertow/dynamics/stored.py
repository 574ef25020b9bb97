"""A run without its functions: the part of a `Continuation` that can be written to a disk."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Literal, cast

import jax
import numpy as np
from jaxtyping import PyTree

from undertow._validate import Number
from undertow.dynamics import engine
from undertow.dynamics.clock import Schedule, clocks
from undertow.dynamics.diffuse import EulerStep, GaussianNoise, euler_noise, euler_optimiser
from undertow.dynamics.drive import Continuation, make_spec
from undertow.dynamics.gather import join_seeds
from undertow.noise.base import AbstractNoise
from undertow.optimisers import SGD, AbstractOptimiser, Adam, AdamW, RMSProp
from undertow.trajectory import ProgressReport, Trajectory

__all__ = ["Functions", "RunSettings", "StoredRun", "detached", "functions_of", "observed_like", "optimiser_from"]

STATE = tuple(field.name for field in fields(engine.State))
LOAD = "Trajectory.load"
OPTIMISERS = (SGD, RMSProp, Adam, AdamW)


@dataclass(frozen=True, eq=False)
class Functions:
    """The parts of a run that cannot be stored: its noise, observables, schedule, and optax optimiser."""

    noise: AbstractNoise
    observe: dict[str, Callable[[PyTree], PyTree]]
    average: dict[str, Callable[[PyTree], PyTree]]
    step_size: Schedule | None
    optimiser: AbstractOptimiser | None = None
    """An optimiser that is not one of undertow's; None otherwise."""


@dataclass(frozen=True)
class RunSettings:
    """The plain values of a `Continuation`; see there."""

    function: str
    step_size: float | None
    """The step size; None for a schedule."""
    step: int
    block: int
    every: int | None
    capacity: int
    seeds: int | None
    clock: Literal["step", "time"]
    substeps: int
    seconds: float
    lane_width: int | None
    observe: tuple[str, ...]
    average: tuple[str, ...]
    optimiser: dict[str, object] | None
    """The class and the numbers of the optimiser; None for one that is not undertow's."""

    def to_json(self) -> dict[str, object]:
        """Return the record as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict) -> "RunSettings":
        """Return the record that `to_json` wrote."""
        rest = {name: value for name, value in data.items() if name not in ("observe", "average")}
        return RunSettings(observe=tuple(data["observe"]), average=tuple(data["average"]), **rest)


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run between two chunks without its noise, observables and schedule, which `attach` adds."""

    settings: RunSettings
    lanes: tuple[dict[str, PyTree], ...]
    """The fields of `engine.State` by their names, for each lane."""
    observed_steps: np.ndarray
    observed: dict[str, PyTree]
    """The observations so far, also those after a divergence."""
    identities: dict[str, str]
    """Hashes of the noise, the observables and the schedule of the run, by their names."""

    def resume(self, steps: int | None, time: Number | None, progress: ProgressReport) -> Trajectory:
        """Raise: the run has no noise."""
        raise TypeError(
            f"`run.resume`: the run was loaded without its noise; give it: "
            f"`{LOAD}(path, {', '.join(f'{name}=...' for name in self.needed())})`."
        )

    def needed(self) -> list[str]:
        """Return the arguments of `Trajectory.load` that continue the run."""
        given = {"noise": True, "observe": self.settings.observe, "average": self.settings.average}
        given |= {"step_size": self.settings.step_size is None, "optimiser": self.settings.optimiser is None}
        return [name for name, needed in given.items() if needed]

    def optimiser_state(self) -> PyTree:
        """Return the state of the optimiser; see `Trajectory.optimiser_state`."""
        states = [lane["memory"] for lane in self.lanes]
        if self.settings.seeds is None:
            return states[0]
        return join_seeds(states, self.settings.seeds)

    def attach(self, functions: Functions) -> Continuation:
        """Return the run with its functions, after checking that they fit."""
        settings = self.settings
        _check_names("observe", settings.observe, functions.observe)
        _check_names("average", settings.average, functions.average)
        eta = self._step_size(functions.step_size)
        noise = functions.noise
        optimiser = self._optimiser(functions.optimiser)
        diffusing = settings.function == "diffuse"
        spec = make_spec(
            LOAD,
            euler_noise(noise, settings.substeps) if diffusing else noise,
            eta,
            euler_optimiser(noise, optimiser, settings.substeps) if diffusing else optimiser,
            functions.observe,
            functions.average,
        )
        lanes = tuple(engine.State(**lane) for lane in self.lanes)
        self._check_shapes(functions, lanes[0].params)
        return Continuation(
            function=settings.function,
            spec=spec,
            step_size=eta,
            lanes=lanes,
            step=settings.step,
            block=settings.block,
            every=settings.every,
            capacity=settings.capacity,
            seeds=settings.seeds,
            clock=settings.clock,
            substeps=settings.substeps,
            record=(self.observed_steps, self.observed),
            seconds=settings.seconds,
            lane_width=settings.lane_width,
        )

    def _check_shapes(self, functions: Functions, params: PyTree) -> None:
        """Raise where the noise does not fit params, or where an observable has another shape than those recorded."""
        seeds = self.settings.seeds
        one = params if seeds is None else jax.tree.map(lambda leaf: leaf[0], params)
        functions.noise.check(one)
        like = observed_like(functions.observe, functions.average, one)
        for name, tree in self.observed.items():
            shape = lambda leaf: leaf.shape[1 if seeds is None else 2 :]
            recorded, given = jax.tree.map(shape, tree), jax.tree.map(lambda leaf: leaf.shape, like[name])
            if recorded != given:
                raise ValueError(
                    f"`{LOAD}(path, ...)`: the observable {name!r} has the shape {given}, in the run it has "
                    f"{recorded}; give the function of the run."
                )

    def _optimiser(self, given: AbstractOptimiser | None) -> AbstractOptimiser:
        stored = self.settings.optimiser
        if stored is not None:
            if given is not None:
                raise TypeError(
                    f"`{LOAD}(path, optimiser=...)`: the run has the optimiser {stored['name']}, which is stored; "
                    "leave `optimiser` out."
                )
            return optimiser_from(stored)
        return cast("AbstractOptimiser", given)  # `load_run` has asked for it

    def _step_size(self, given: Schedule | None) -> float | Schedule:
        stored = self.settings.step_size
        if stored is not None:
            if given is not None:
                raise TypeError(
                    f"`{LOAD}(path, step_size=...)`: the run has the constant step size "
                    f"{stored * self.settings.substeps:g}, which is stored; leave `step_size` out."
                )
            return stored
        if not callable(given):
            raise TypeError(
                f"`{LOAD}(path, step_size={given!r})`: the step size of the run is a schedule, which cannot be stored; "
                "give the function again."
            )
        return given

    def check_schedule(self, schedule: Schedule, run: Trajectory) -> None:
        """Raise where a schedule does not give the times of the run."""
        time, _ = clocks(LOAD, schedule, np.asarray(run.step, int))
        if not np.allclose(time, run.time, rtol=1e-6, atol=0):
            raise ValueError(
                f"`{LOAD}(path, step_size=...)`: the schedule sums to {time[-1]:.6g} over the {run.step[-1]} steps of "
                f"the run, whose time is {run.time[-1]:.6g}; give the schedule of the run."
            )


def detached(run: Continuation, identities: dict[str, str]) -> StoredRun:
    """Return a run without its functions."""
    settings = RunSettings(
        function=run.function,
        step_size=None if callable(run.step_size) else run.step_size,
        step=run.step,
        block=run.block,
        every=run.every,
        capacity=run.capacity,
        seeds=run.seeds,
        clock=run.clock,
        substeps=run.substeps,
        seconds=run.seconds,
        lane_width=run.lane_width,
        observe=tuple(run.spec.observe),
        average=tuple(run.spec.average),
        optimiser=optimiser_record(_optimiser_of(run)),
    )
    lanes = tuple({name: getattr(lane, name) for name in STATE} for lane in run.lanes)
    steps, observed = run.record
    return StoredRun(settings, lanes, steps, observed, identities)


def functions_of(run: Continuation) -> Functions:
    """Return the functions of a run as they were given."""
    noise = run.spec.noise
    original = noise.noise if isinstance(noise, GaussianNoise) and run.function == "diffuse" else noise
    schedule = cast("Schedule", run.step_size) if callable(run.step_size) else None
    optimiser = _optimiser_of(run)
    foreign = optimiser if optimiser_record(optimiser) is None else None
    return Functions(original, run.spec.observe, run.spec.average, schedule, foreign)


def _optimiser_of(run: Continuation) -> AbstractOptimiser:
    optimiser = run.spec.optimiser
    return optimiser.optimiser if isinstance(optimiser, EulerStep) else optimiser


def optimiser_record(optimiser: AbstractOptimiser) -> dict[str, object] | None:
    """Return the class and the numbers of an optimiser as plain values; None for one that is not undertow's."""
    if type(optimiser) not in OPTIMISERS:
        return None
    values = {name: getattr(optimiser, name) for name in inspect.signature(type(optimiser)).parameters}
    plain = {name: value if isinstance(value, bool) else float(value or 0.0) for name, value in values.items()}
    return {"name": type(optimiser).__name__, **plain}


def optimiser_from(record: dict) -> AbstractOptimiser:
    """Return the optimiser of a record of `optimiser_record`."""
    numbers = {name: value for name, value in record.items() if name != "name"}
    return next(kind for kind in OPTIMISERS if kind.__name__ == record["name"])(**numbers)


def observed_like(observe: dict[str, Callable], average: dict[str, Callable], like: PyTree) -> dict[str, PyTree]:
    """Return the shapes of the observables and of the averages by name, for one run with params like `like`."""
    return jax.eval_shape(lambda p: {name: f(p) for name, f in {**observe, **average}.items()}, like)


def _check_names(argument: str, stored: tuple[str, ...], given: dict[str, Callable]) -> None:
    missing, foreign = [n for n in stored if n not in given], [n for n in given if n not in stored]
    if missing or foreign:
        what = f"{missing[0]!r} is missing" if missing else f"the run has no {foreign[0]!r}"
        raise ValueError(
            f"`{LOAD}(path, {argument}=...)`: {what}; give the functions of the run again, as they were: "
            f"{', '.join(map(repr, stored)) or 'none'}."
        )
