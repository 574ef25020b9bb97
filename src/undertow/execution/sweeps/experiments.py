"""Look up an experiment by name and check its parameters.

An experiment is the experiment of a claim, a phase diagram, or a user's function f(key, *, parameters...) that returns
a dict of arrays.
"""

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.execution.provenance import Parameter
from undertow.execution.registry import (
    AbstractClaim,
    UserFileError,
    claims,
    diagrams,
    exit_message,
    load_file,
    similar_names,
)
from undertow.execution.store import JSONObject
from undertow.execution.sweeps.spec import SpecError

if TYPE_CHECKING:
    import jax
    from numpy.typing import ArrayLike

__all__ = ["Experiment", "find", "fit_value", "fitted"]

KINDS: dict[object, str] = {float: "float", int: "int", bool: "bool", str: "str"}


@dataclass(frozen=True)
class Experiment:
    """A function of a key and parameters, with the kinds of the parameters."""

    call: "Callable[[jax.Array, Mapping[str, Parameter | jax.Array]], Mapping[str, ArrayLike]]"
    """The outputs, arrays of any library by name."""
    kinds: dict[str, str]
    """`float` (traced), `int`, `bool` or `str` (static) for every parameter; `any` where the function does not say."""
    needed: tuple[str, ...]
    """The parameters without a default."""
    batched: bool
    """Whether to try to trace it."""
    dimensions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: JSONObject = field(default_factory=dict)


def find(experiment: str | Callable, scale: str) -> Experiment:
    """Return the experiment of a name: FILE.py:FUNCTION, a phase diagram, or a claim."""
    if callable(experiment):
        return of_function(experiment)
    file, colon, name = experiment.rpartition(":")
    if colon:
        if not Path(file).is_file():
            raise SpecError(f"{file}: there is no such file.")
        try:
            module = load_file(Path(file))
        except UserFileError as error:
            raise SpecError(str(error)) from None
        if not callable(getattr(module, name, None)):
            raise SpecError(f"{file} has no function {name!r}.")
        return of_function(getattr(module, name))
    if experiment in diagrams:
        return of_function(diagrams[experiment].run)
    if experiment not in claims:
        near = similar_names(experiment, [*diagrams, *claims])
        hint = f"did you mean {' or '.join(near)}?" if near else "`undertow list` shows the claims."
        raise SpecError(f"there is no experiment {experiment!r}; {hint} Your own is FILE.py:FUNCTION.")
    return _of_claim(claims[experiment], scale)


def of_function(function: Callable) -> Experiment:
    """Return the experiment of a function f(key, *, parameters...)."""
    given = _arguments(function)
    rest = given[1:]
    if not given or given[0].name != "key" or any(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in rest):
        name = getattr(function, "__name__", "the function")
        raise SpecError(f"{name}: write it as {name}(key, *, parameters...).")
    hints = _hints(function)
    empty = inspect.Parameter.empty
    kinds = {p.name: _kind(hints.get(p.name, None if p.default is empty else type(p.default))) for p in rest}

    def call(key: "jax.Array", parameters: "Mapping[str, Parameter | jax.Array]") -> "Mapping[str, ArrayLike]":
        try:
            returned = function(key, **parameters)
        except SystemExit as stop:  # it would end the worker
            raise SpecError(f"{getattr(function, '__name__', 'the experiment')}: {exit_message(stop)}") from stop
        outputs = dict(returned) if isinstance(returned, Mapping) else {"value": returned}
        if not outputs:
            raise SpecError("the experiment returns no outputs; return a dict of arrays, such as {'loss': loss}.")
        return outputs

    return Experiment(call, kinds, tuple(p.name for p in rest if p.default is empty), batched=True)


def _arguments(function: Callable) -> list[inspect.Parameter]:
    """Return the arguments of a function; none where Python does not know them, as of some functions written in C."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def _hints(function: Callable) -> dict[str, object]:
    """Return the annotations of a function; `functools.partial` has those of the function that it calls."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # annotations that exist for a type checker alone, or an object without any
        return {}


def _kind(hint: object) -> str:
    """Return the kind of an annotation; a union with float, such as `float | Array`, is a float."""
    return "float" if float in typing.get_args(hint) else KINDS.get(hint, "any")


def _of_claim(claim: AbstractClaim, scale: str) -> Experiment:
    if scale not in claim.scales:
        raise SpecError(f"scale = {scale!r}: choose one of {', '.join(claim.scales)}.")
    usual = claim.scales[scale]
    return Experiment(
        lambda key, parameters: claim.columns(replace(usual, **parameters), key),
        {name: _kind(type(value)) for name, value in claim.parameters(scale).items()},
        (),
        batched=False,
        dimensions=dict.fromkeys(claim.COLUMNS, ("check",)),
        attributes={"verdicts": list(claim.VERDICTS), "claim": claim.id},
    )


def fitted(
    kinds: Mapping[str, str], needed: tuple[str, ...], parameters: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    """Return the parameters converted to their kinds; raise an error if one is unknown, missing or of another kind.

    >>> from undertow.execution.sweeps.experiments import fitted
    >>> fitted({"eta": "float", "n": "int"}, (), {"eta": 1, "n": 20.0})
    {'eta': 1.0, 'n': 20}
    """
    fit = {}
    for name, value in parameters.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, list(kinds), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds) or 'none'}."
            raise SpecError(f"the experiment has no parameter {name!r}; {hint}")
        fit[name] = fit_value(name, kinds[name], value)
    for name in needed:
        if name not in parameters:
            raise SpecError(f"the parameter {name} has no value and no default; give it on an axis or in [parameters].")
    return fit


def fit_value(name: str, kind: str, value: Parameter) -> Parameter:
    """Return the value of one parameter converted to its kind."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "float" and number:
        return float(value)
    if kind == "int" and number and float(value).is_integer():
        return int(value)
    if kind == "any" or (kind in ("bool", "str") and type(value).__name__ == kind):
        return value
    wanted = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}[kind]
    raise SpecError(f"{name} = {value!r}: {name} is {wanted}.")
