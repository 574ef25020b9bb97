"""An instrument: sliders, a function of their values that returns numbers, a picture, and the same in Python code."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from string import Template
from typing import Generic, TypeVar

from jaxtyping import PyTree

from undertow.explore.picture import Json, Picture

__all__ = ["Instrument", "Observables", "SettingError", "Settings", "Slider", "Value"]

Value = int | float | str
Settings = Mapping[str, Value]
Observables = dict[str, Callable[[PyTree], PyTree]]
Result = TypeVar("Result")


class SettingError(ValueError):
    """A value that a slider does not have."""


@dataclass(frozen=True)
class Slider:
    """A slider with a few values, in order."""

    name: str
    label: str
    values: tuple[Value, ...]
    default: Value
    static: tuple[Value, ...] = ()
    """The values of the page without a server; empty for the default alone."""
    programs: tuple[Value, ...] = ()
    """Values with a program of their own beside that of the default; they are compiled when the explorer starts."""
    small_programs: tuple[Value, ...] = ()
    """Values with small programs of their own, such as those that join the arrays of so many runs. The values of other
    sliders use the same ones. They are compiled when the explorer starts, too."""

    def __post_init__(self) -> None:
        for value in (self.default, *self.static, *self.programs, *self.small_programs):
            if value not in self.values:
                raise ValueError(f"`Slider({self.name!r})`: {value!r} is not among the values {self.values}.")

    def parse(self, text: str) -> Value:
        """Return the value that a text of the address names; a script may write 1 for 1.0."""
        for value in self.values:
            if text == str(value) or (isinstance(value, float) and text == f"{value:g}"):
                return value
        known = ", ".join(map(str, self.values))
        raise SettingError(f"{self.name}={text}: the slider has the values {known}.")


@dataclass(frozen=True)
class Instrument(Generic[Result]):
    """Theory beside simulation for one model.

    `compute` is a pure function from the values of all sliders to numbers, and `draw` makes a picture of them. `code`
    is a template of the same computation in Python, with `$name` for the value of a slider.
    """

    name: str
    title: str
    summary: str
    theory: str
    """The page of the documentation with the derivation, relative to its root."""
    sliders: tuple[Slider, ...]
    compute: Callable[[Settings], Result]
    draw: Callable[[Result], Picture]
    code: str

    def picture(self, settings: Settings) -> Picture:
        """Return the picture at one setting."""
        return self.draw(self.compute(settings))

    def defaults(self) -> dict[str, Value]:
        """Return the setting with which the instrument opens."""
        return {slider.name: slider.default for slider in self.sliders}

    def parse(self, query: Mapping[str, str]) -> dict[str, Value]:
        """Return the setting that an address names; values that it does not name are the defaults."""
        unknown = sorted(set(query) - {slider.name for slider in self.sliders})
        if unknown:
            names = ", ".join(slider.name for slider in self.sliders)
            raise SettingError(f"{unknown[0]} is not a slider of {self.name}, which has {names}.")
        return {s.name: s.parse(query[s.name]) if s.name in query else s.default for s in self.sliders}

    def python(self, settings: Settings) -> str:
        """Return the Python code of one setting."""
        return Template(self.code).substitute({name: str(value) for name, value in settings.items()})

    def compiled_settings(self) -> Iterator[dict[str, Value]]:
        """Yield a setting for each program of the instrument, the defaults first."""
        names = [slider.name for slider in self.sliders]
        for values in itertools.product(*((slider.default, *slider.programs) for slider in self.sliders)):
            yield dict(zip(names, values, strict=True))
        for slider in self.sliders:
            yield from (self.defaults() | {slider.name: value} for value in slider.small_programs)

    def static_settings(self) -> Iterator[dict[str, Value]]:
        """Yield every setting of the page without a server, the last slider first."""
        names = [slider.name for slider in self.sliders]
        for values in itertools.product(*(slider.static or (slider.default,) for slider in self.sliders)):
            yield dict(zip(names, values, strict=True))

    def describe(self, *, static: bool = False) -> dict[str, Json]:
        """Return what the page needs: texts, sliders and the template of the code."""
        stops = lambda s: (s.static or (s.default,)) if static else s.values
        sliders: list[Json] = [
            {"name": s.name, "label": s.label, "values": list(stops(s)), "default": s.default} for s in self.sliders
        ]
        texts = {"name": self.name, "title": self.title, "summary": self.summary, "theory": self.theory}
        return {**texts, "sliders": sliders, "code": self.code}
