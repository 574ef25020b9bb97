"""Sliders and addresses: defaults, texts of numbers, mistakes, and the grids of settings."""

import pytest

from undertow.explore.instrument import Instrument, SettingError, Slider
from undertow.explore.picture import Picture

SLIDERS = (
    Slider("step_size", "step size", (0.1, 1.0, 2.0), 1.0, static=(0.1, 2.0)),
    Slider("batch_size", "batch size", (1, 4), 1, programs=(4,)),
    Slider("optimiser", "optimiser", ("SGD", "AdamW"), "SGD"),
    Slider("seeds", "runs", (2, 8), 2, small_programs=(8,)),
)
PLAIN = Instrument(
    "plain", "Plain", "A summary.", "theory/zero-loss", SLIDERS, compute=dict, draw=lambda _: Picture((), ()),
    code="eta = $step_size\nname = '$optimiser'\n",
)  # fmt: skip


def test_an_address_names_values_and_the_rest_are_defaults():
    assert PLAIN.parse({}) == {"step_size": 1.0, "batch_size": 1, "optimiser": "SGD", "seeds": 2}
    assert PLAIN.parse({"step_size": "2", "optimiser": "AdamW"})["step_size"] == 2.0
    assert PLAIN.parse({"step_size": "2.0"}) == PLAIN.parse({"step_size": "2"})


@pytest.mark.parametrize("query", [{"step_size": "3"}, {"step_size": "x"}, {"batch_size": ""}, {"speed": "1"}])
def test_other_values_are_refused_with_a_sentence(query):
    with pytest.raises(SettingError, match=r"^[a-z_]+(=| is not a slider).* has .*\.$"):
        PLAIN.parse(query)


def test_a_default_outside_the_values_is_refused():
    with pytest.raises(ValueError, match="3 is not among the values"):
        Slider("n", "n", (1, 2), 3)


def test_there_is_a_setting_for_each_program_with_the_default_first():
    assert [(s["batch_size"], s["seeds"]) for s in PLAIN.compiled_settings()] == [(1, 2), (4, 2), (1, 8)]


def test_the_page_without_a_server_has_the_product_of_its_values():
    settings = list(PLAIN.static_settings())
    assert [(s["step_size"], s["batch_size"]) for s in settings] == [(0.1, 1), (2.0, 1)]
    assert [s["values"] for s in PLAIN.describe(static=True)["sliders"]] == [[0.1, 2.0], [1], ["SGD"], [2]]


def test_the_code_has_the_values():
    assert PLAIN.python(PLAIN.defaults()) == "eta = 1.0\nname = 'SGD'\n"
