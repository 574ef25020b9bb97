"""What holds for every instrument, called by the test of each."""

import json
import warnings

import numpy as np

from docs.explorer import FOLDER, indices, trimmed
from undertow.execution.compiling import compilations
from undertow.explore.instrument import Instrument, SettingError, Settings
from undertow.explore.picture import Picture


def check_other_values_compile_nothing(instrument: Instrument) -> None:
    """Numbers are traced. Another number of runs compiles two programs at most, at the start of the explorer."""
    instrument.picture(instrument.defaults())
    for slider in instrument.sliders:
        if slider.programs:
            continue
        others = [value for value in slider.values if value != slider.default]
        for value in (others[0], others[-1]):
            allowed = 2 if value in slider.small_programs else 0
            with compilations() as compiled:
                try:
                    instrument.picture(instrument.defaults() | {slider.name: value})
                except SettingError:  # all runs of a large step diverge; the first time the engine compiles their end
                    allowed = 1
            assert len(compiled) <= allowed, (slider.name, value, compiled)


def check_code(instrument: Instrument, settings: Settings, row: int) -> None:
    """The code runs as it is and has the numbers of a row of the table."""
    names: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(instrument.python(instrument.defaults() | dict(settings)), names)
    shown = instrument.picture(instrument.defaults() | dict(settings)).rows[row]
    # the programs differ, so that rounding errors do, and average over hundreds of steps
    np.testing.assert_allclose(names["theory"], shown.theory, rtol=1e-3)
    np.testing.assert_allclose(names["simulation"], shown.simulation, rtol=1e-3)


def stored(instrument: Instrument) -> dict:
    """Return the pictures of the page in the documentation."""
    text = (FOLDER / f"{instrument.name}.js").read_text()
    return json.loads(text.partition(" = ")[2].rstrip().removesuffix(";"))


def check_stored(instrument: Instrument) -> None:
    """The page without a server has the settings and texts of the instrument, and three pictures agree with it."""
    page, settings = stored(instrument), list(instrument.static_settings())
    assert page["description"] == json.loads(json.dumps(instrument.describe(static=True)))
    assert set(page["pictures"]) == {indices(instrument, one) for one in settings}
    for one in (settings[0], settings[len(settings) // 2], settings[-1]):
        assert_same(page["pictures"][indices(instrument, one)], trimmed(instrument.picture(one).to_json()))


def assert_same(old: dict, new: dict) -> None:
    """Compare two pictures by 2 % of the range of a panel: rounding depends on the number of threads."""
    assert old["notes"] == new["notes"]
    for before, after in zip(old["panels"], new["panels"], strict=True):
        assert {k: v for k, v in before.items() if k != "series"} == {k: v for k, v in after.items() if k != "series"}
        for one, other in zip(before["series"], after["series"], strict=True):
            assert (one["kind"], one["label"]) == (other["kind"], other["label"])
            x, y = (np.log10 if before[name]["log"] else np.asarray for name in ("x", "y"))
            close(x(numbers(one["x"])), x(numbers(other["x"])))
            close(y(numbers(one["y"])), y(numbers(other["y"])))


def numbers(values: list) -> np.ndarray:
    return np.array(values, dtype=float)


def close(one: np.ndarray, other: np.ndarray) -> None:
    span = np.nanmax(one) - np.nanmin(one)
    np.testing.assert_allclose(one, other, atol=0.02 * span + 1e-9, rtol=0.01)


def near(picture: Picture, row: int, *, share: float, sigmas: float = 4) -> bool:
    """Return whether a simulated number is near its prediction: within a share of it, or standard errors."""
    shown = picture.rows[row]
    assert shown.theory is not None
    assert shown.simulation is not None
    return abs(shown.simulation - shown.theory) <= share * abs(shown.theory) + sigmas * (shown.error or 0)
