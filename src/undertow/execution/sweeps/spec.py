"""The specification of a sweep: an experiment, the axes along which its parameters change, and the number of seeds.

An axis is a list of values, `{linear = [low, high, count]}`, `{log = [low, high, count]}`, several parameters that
change together, `{zip = {a = ..., b = ...}}`, or points drawn at random,
`{random = {a = {linear = [low, high]}, b = {log = [low, high]}}, count = 100}`. The sweep is the grid of all axes.
"""

import difflib
import hashlib
import json
import math
import numbers
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from undertow.execution.provenance import Parameter
from undertow.execution.reading import check_fields, plain_name
from undertow.execution.store import JSONObject, StoreError

__all__ = ["Axis", "Spec", "SpecError", "as_spec", "check_outputs", "point_words", "read_spec"]

MOST_RUNS = 100_000_000
MOST_POINTS = 1_000_000
"""The most points of one axis, whose values are a list in memory and in sweep.json. Repetitions are seeds."""
LONGEST_NAME = 100
RESERVED = ("seed", "done")
"""Names that every dataset of results uses."""
FIELDS = ("experiment", "axes", "parameters", "seeds", "seed", "scale", "show", "time_limit")


class SpecError(StoreError, ValueError):
    """The specification of a sweep is wrong."""


@runtime_checkable
class SupportsToList(Protocol):
    """An array of any library."""

    def tolist(self) -> object:
        """Return the array as Python numbers in nested lists."""
        ...


@runtime_checkable
class SupportsItem(Protocol):
    """A scalar of any library."""

    def item(self) -> object:
        """Return the scalar as a Python number."""
        ...


@dataclass(frozen=True)
class Axis:
    """One dimension of the results: its name, and the values of one parameter or more along it."""

    name: str
    values: dict[str, tuple[Parameter, ...]]

    @property
    def size(self) -> int:
        """The number of points."""
        return len(next(iter(self.values.values())))


@dataclass(frozen=True)
class Spec:
    """A checked specification. `show` and `time_limit` change neither the results nor their folder."""

    experiment: str
    axes: tuple[Axis, ...]
    parameters: dict[str, Parameter] = field(default_factory=dict)
    seeds: int = 1
    seed: int = 0
    scale: str = "smoke"
    show: str | None = None
    time_limit: float | int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, then the number of seeds."""
        return (*(axis.size for axis in self.axes), self.seeds)

    @property
    def points(self) -> int:
        """The number of points, without their seeds."""
        return math.prod(self.shape[:-1])

    @property
    def runs(self) -> int:
        """The number of points times the number of seeds."""
        return math.prod(self.shape)

    def facts(self) -> JSONObject:
        """Return the fields that determine the results, as plain values."""
        axes = [{"name": axis.name, "values": {p: list(v) for p, v in axis.values.items()}} for axis in self.axes]
        plain = {name: getattr(self, name) for name in ("experiment", "parameters", "seeds", "seed", "scale")}
        return plain | {"axes": axes}

    def to_json(self) -> JSONObject:
        """Return the specification as plain values; `time_limit` belongs to a run and is left out."""
        return self.facts() | {"show": self.show}

    @staticmethod
    def from_json(data: JSONObject) -> "Spec":
        """Return the specification that `to_json` wrote; raise a ValueError, KeyError or TypeError if it is damaged."""
        axes = tuple(Axis(a["name"], {p: tuple(v) for p, v in a["values"].items()}) for a in data["axes"])
        fields = {name: data[name] for name in ("experiment", "parameters", "seeds", "seed", "scale", "show")}
        spec = Spec(axes=axes, **fields)
        check_fields(spec)
        even = all(len(set(map(len, axis.values.values()))) == 1 for axis in axes)
        if not (axes and even and 0 < spec.runs <= MOST_RUNS):
            raise ValueError("the axes of the specification do not make a grid")
        return spec

    def point(self, index: tuple[int, ...]) -> dict[str, Parameter]:
        """Return the parameters at one point of the grid."""
        chosen = dict(self.parameters)
        for axis, i in zip(self.axes, index, strict=True):
            chosen |= {name: values[i] for name, values in axis.values.items()}
        return chosen


def point_words(parameters: Mapping[str, Parameter]) -> tuple[int, int]:
    """Return 64 bits that depend on a point's parameters alone; with the seed they make its random key.

    >>> from undertow.execution.sweeps.spec import point_words
    >>> point_words({"a": 1, "b": 0.5}) == point_words({"b": 0.5, "a": 1.0})
    True
    """
    plain = lambda v: float(v) if isinstance(v, int | float) and not isinstance(v, bool) else v
    text = json.dumps({name: plain(value) for name, value in parameters.items()}, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def read_spec(path: Path | str) -> Spec:
    """Return the specification in a TOML file. A path `file.py:name` in it is relative to the TOML file."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: not TOML, which is UTF-8 text (byte {error.start} is not); save it as UTF-8."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not TOML ({error}).") from None
    try:
        given: JSONObject = _known(content, FIELDS, "a sweep")
        spec = as_spec(**given)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    file, colon, name = spec.experiment.rpartition(":")
    if colon and not Path(file).is_absolute():
        spec = replace(spec, experiment=f"{(path.parent / file).resolve()}:{name}")
    return spec


def as_spec(
    experiment: object = None,
    axes: object = None,
    parameters: object = None,
    seeds: object = 1,
    seed: object = 0,
    scale: str = "smoke",
    show: str | None = None,
    time_limit: object = None,
) -> Spec:
    """Check everything that can be checked without the experiment, and compute the axes.

    >>> from undertow.execution.sweeps.spec import as_spec
    >>> spec = as_spec("own.py:f", {"eta": {"log": [0.01, 1.0, 3]}, "n": [5, 10]}, seeds=4)
    >>> print(spec.points, spec.runs, spec.point((1, 0)))
    6 24 {'eta': 0.1, 'n': 5}
    """
    if not isinstance(experiment, str) or not experiment:
        raise SpecError(f'experiment = {experiment!r}: name the experiment, such as experiment = "own.py:name".')
    _, colon, function = experiment.rpartition(":")
    if colon and not function.isidentifier():
        raise SpecError(
            f"experiment = {experiment!r}: {function!r} is not the name of a function; write FILE.py:FUNCTION."
        )
    if not isinstance(axes, Mapping) or not axes:
        raise SpecError(f"axes = {axes!r}: give at least one axis, such as axes.step_size = {{log = [0.01, 0.1, 10]}}.")
    if not _whole(seed) or not 0 <= seed < 2**32:
        raise SpecError(f"seed = {seed!r}: give a whole number from 0 to 2^32 - 1.")
    if not _whole(seeds) or seeds < 1:
        raise SpecError(f"seeds = {seeds!r}: give a whole number, at least 1.")
    if time_limit is not None and not _seconds(time_limit):
        raise SpecError(f"time_limit = {time_limit!r}: give seconds above 0.")
    for name, text in (("scale", scale), ("show", show)):
        if not isinstance(text, str) and not (name == "show" and text is None):
            raise SpecError(f"{name} = {text!r}: give a string.")
    if not isinstance(parameters, Mapping | None):
        raise SpecError(f"parameters = {parameters!r}: give a table of names and values, such as {{'steps': 200}}.")
    seed, seeds = int(seed), int(seeds)
    made = tuple(_axis(str(name), given, seed) for name, given in axes.items())
    fixed = {str(name): _value(f"parameters.{name}", value) for name, value in (parameters or {}).items()}
    _check_names(made, fixed)
    limit = float(time_limit) if isinstance(time_limit, numbers.Real) else None
    spec = Spec(experiment, made, fixed, seeds, seed, scale, show, limit)
    if spec.runs > MOST_RUNS:
        raise SpecError(f"{spec.points:,} points of {seeds:,} seeds are more than {MOST_RUNS:,} runs; make it coarser.")
    return spec


def _check_names(axes: tuple[Axis, ...], fixed: Mapping[str, Parameter]) -> None:
    """Check that every axis, and every parameter on one, has a unique name in the results."""
    parameters = [name for axis in axes for name in axis.values]
    for name in parameters:
        if parameters.count(name) > 1 or name in fixed:
            raise SpecError(f"{name} is given twice: let it be on one axis, or a fixed parameter.")
    for axis in axes:
        _check_name(axis.name, f"axes.{axis.name}")
        if axis.name in RESERVED:
            raise SpecError(f"axes.{axis.name}: the results use this name; call the axis something else.")
        for name in axis.values:
            _check_name(name, f"axes.{axis.name}")
            if name in RESERVED:
                raise SpecError(
                    f"axes.{axis.name}: the results use the name {name}; rename the parameter, or give it a fixed "
                    "value in [parameters]."
                )
        for other in axes:
            if other is not axis and (axis.name == other.name or axis.name in other.values):
                raise SpecError(
                    f"axes.{axis.name}: {axis.name} is also on the axis {other.name}; call this axis something else."
                )


def check_outputs(spec: Spec, outputs: Mapping[object, tuple[str, ...]]) -> None:
    """Check that every output, and every dimension of one, has a unique name in the results.

    >>> from undertow.execution.sweeps.spec import as_spec, check_outputs
    >>> check_outputs(as_spec("own.py:f", {"v_0": [1, 2]}), {"v": ("v_0",)})
    Traceback (most recent call last):
    undertow.execution.sweeps.spec.SpecError: the dimension 'v_0' of the output 'v' is also a name of the sweep; rename
    one.
    """
    taken = {*RESERVED, *(name for axis in spec.axes for name in (axis.name, *axis.values))}
    for output, dimensions in outputs.items():
        _check_name(output, f"the output {output!r}")
        if output in taken:
            raise SpecError(f"the experiment returns {output!r}, which is a name of the sweep; rename it.")
        for name in dimensions:
            if name in taken or name in outputs:
                other = "a name of the sweep" if name in taken else "an output"
                raise SpecError(f"the dimension {name!r} of the output {output!r} is also {other}; rename one.")


def _check_name(name: object, where: str) -> None:
    """Check a name, which is also the name of a folder of the dataset."""
    if isinstance(name, str) and len(name.encode(errors="replace")) > LONGEST_NAME:
        raise SpecError(f"{name[:40]}...: a name of {len(name)} characters; give one of at most {LONGEST_NAME} bytes.")
    if not isinstance(name, str) or not name.isprintable() or name.startswith(("__", " ")) or not plain_name(name):
        raise SpecError(f"{where}: {name!r} cannot be a name in the results; use letters, digits and underscores.")


def _whole(given: object) -> TypeGuard[int]:
    """Return whether a value is a whole number, of Python or NumPy."""
    return isinstance(given, numbers.Integral) and not isinstance(given, bool)


def _seconds(given: object) -> bool:
    """Return whether a value is a finite number above 0."""
    return isinstance(given, numbers.Real) and not isinstance(given, bool) and 0 < float(given) < math.inf


def _known(given: Mapping[str, object], allowed: tuple[str, ...], what: str) -> dict[str, object]:
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(allowed)}."
            raise SpecError(f"{what} has no {name!r}; {hint}")
    return dict(given)


def _axis(name: str, given: object, seed: int) -> Axis:
    if isinstance(given, Mapping) and "zip" in given:
        _known(given, ("zip",), f"axes.{name}")
        return _together(name, {str(p): _values(f"{name}.{p}", v) for p, v in _table(name, "zip", given).items()})
    if isinstance(given, Mapping) and "random" in given:
        _known(given, ("random", "count"), f"axes.{name}")
        return _random(name, _table(name, "random", given), given.get("count"), seed)
    return _together(name, {name: _values(name, given)})


def _table(name: str, kind: str, given: Mapping[str, object]) -> Mapping[str, object]:
    table = given[kind]
    if not isinstance(table, Mapping) or not table:
        raise SpecError(f"axes.{name}.{kind}: give a table of parameters.")
    return table


def _together(name: str, values: dict[str, tuple[Parameter, ...]]) -> Axis:
    sizes = {parameter: len(column) for parameter, column in values.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{parameter} has {size}" for parameter, size in sizes.items())
        raise SpecError(f"axes.{name}: parameters that change together need equally many values; {listed}.")
    points = list(zip(*values.values(), strict=True))
    if len(set(points)) < len(points):
        raise SpecError(f"axes.{name}: the same point occurs twice; use seeds to repeat it.")
    return Axis(name, values)


def _values(name: str, given: object) -> tuple[Parameter, ...]:
    """Return the values of a list or a range."""
    given = given.tolist() if isinstance(given, SupportsToList) else given
    if isinstance(given, list | tuple | range):
        if not given:
            raise SpecError(f"axes.{name}: there are no values.")
        if len(given) > MOST_POINTS:
            raise SpecError(f"axes.{name}: {len(given):,} values; an axis has at most {MOST_POINTS:,} points.")
        return tuple(_value(f"axes.{name}", value) for value in given)
    if isinstance(given, Mapping) and len(given) == 1 and next(iter(given)) in ("linear", "log"):
        ((kind, numbers),) = given.items()
        if not isinstance(numbers, list | tuple) or len(numbers) != 3:
            raise SpecError(f"axes.{name}.{kind} = {numbers!r}: give [low, high, count].")
        low, high = _range(name, kind, numbers[:2])
        count = _count(f"axes.{name}.{kind}", numbers[2], least=2)
        return _spread(kind, low, high, count)
    raise SpecError(
        f"axes.{name} = {given!r}: give a list, {{linear = [low, high, count]}}, {{log = [low, high, count]}}, "
        "{zip = {...}} or {random = {...}, count = N}."
    )


def _spread(kind: str, low: float | int, high: float | int, count: int) -> tuple[Parameter, ...]:
    steps = [k / (count - 1) for k in range(count)]
    if kind == "log":
        inner = [math.exp((1 - t) * math.log(low) + t * math.log(high)) for t in steps[1:-1]]
        inner = [float(f"{value:.15g}") for value in inner]
        return (float(low), *inner, float(high))
    values = (low, *(float(f"{low + t * (high - low):.15g}") for t in steps[1:-1]), high)
    whole = isinstance(low, int) and isinstance(high, int) and all(float(value).is_integer() for value in values)
    return tuple(int(value) if whole else float(value) for value in values)


def _random(name: str, table: Mapping[str, object], count: object, seed: int) -> Axis:
    count = _count(f"axes.{name}", count, least=1)
    columns = {}
    for parameter, given in table.items():
        where = f"{name}.random.{parameter}"
        if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in ("linear", "log"):
            raise SpecError(f"axes.{where} = {given!r}: give {{linear = [low, high]}} or {{log = [low, high]}}.")
        ((kind, numbers),) = given.items()
        low, high = _range(where, kind, numbers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{name}.{parameter}".encode())])
        share = rng.random(count)
        drawn = low * (high / low) ** share if kind == "log" else low + (high - low) * share
        columns[str(parameter)] = tuple(float(value) for value in drawn)
    return _together(name, columns)


def _range(name: str, kind: str, numbers: object) -> tuple[float | int, float | int]:
    if not isinstance(numbers, list | tuple) or len(numbers) != 2:
        raise SpecError(f"axes.{name}.{kind} = {numbers!r}: give [low, high].")
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SpecError(f"axes.{name}.{kind}: {value!r} is not a finite number.")
    low, high = numbers
    if not low < high:
        raise SpecError(f"axes.{name}.{kind}: the range goes from {low} to {high}; the first must be the smaller one.")
    if kind == "log" and low <= 0:
        raise SpecError(f"axes.{name}.log: {low} has no logarithm; start above 0, or use linear.")
    return low, high


def _count(where: str, count: object, *, least: int) -> int:
    if not _whole(count) or count < least:
        raise SpecError(f"{where}: the count is {count!r}; give a whole number, at least {least}.")
    if count > MOST_POINTS:
        raise SpecError(f"{where}: the count is {count:,}; an axis has at most {MOST_POINTS:,} points.")
    return int(count)


def _value(name: str, value: object) -> Parameter:
    value = value.item() if isinstance(value, SupportsItem) else value
    if not isinstance(value, bool | int | float | str):
        raise SpecError(f"{name} = {value!r}: give numbers, text or flags.")
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{name} = {value!r}: give finite numbers.")
    return value
