"""A problem of one's own: the example, a file with a problem, a noise or a pair, and files that cannot be used."""

import pytest

from tests.explore.instrument_checks import check_code, check_other_values_compile_nothing, near
from undertow.execution.registry import UserFileError
from undertow.explore.instrument import SettingError
from undertow.explore.own import own_problem

FILE = """
import jax.numpy as jnp
import undertow as ut

bowl = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
params = jnp.array(0.0)
shaken = ut.Isotropic(bowl, 0.1)
both = (shaken, jnp.array(1.0))
deep = (bowl, jnp.zeros(3)), "not a pair of a problem and params"
number = 3
"""


def test_other_values_compile_nothing_new():
    check_other_values_compile_nothing(own_problem())


def test_the_code_runs():
    check_code(own_problem(), {"decay": 0.01, "seeds": 8}, 1)


def test_the_example_follows_its_prediction():
    picture = own_problem().picture(own_problem().defaults() | {"seeds": 64})
    assert near(picture, 0, share=0.1)
    assert near(picture, 1, share=0.05)


@pytest.mark.parametrize(
    ("name", "sliders"),
    [
        ("bowl", {"batch_size"}),
        pytest.param("shaken", set(), marks=pytest.mark.slow),
        pytest.param("both", set(), marks=pytest.mark.slow),
    ],
)
def test_sliders_are_those_that_the_object_needs(file, name, sliders):
    instrument = own_problem(f"{file}:{name}")
    names = {slider.name for slider in instrument.sliders}
    assert names == {"step_size", "decay", "steps", "seeds"} | sliders
    picture = instrument.picture(instrument.defaults() | {"steps": 300})
    assert near(picture, 0, share=0.02)
    if sliders:
        assert [s.values for s in instrument.sliders if s.name == "batch_size"] == [(1,)]  # there are two samples
        check_code(instrument, {"steps": 300}, 1)


def test_a_step_size_at_which_all_runs_diverge_is_a_sentence(file):
    file.write_text(FILE.replace("(w - x) ** 2 / 2", "50 * (w - x) ** 2"))
    instrument = own_problem(f"{file}:bowl")
    with pytest.raises(SettingError, match="All runs diverged: choose a smaller step size"):
        instrument.picture(instrument.defaults())


@pytest.mark.parametrize("name", ["number", "missing", ""])
def test_files_that_cannot_be_used(file, name):
    with pytest.raises(UserFileError, match=r"\.$"):
        own_problem(f"{file}:{name}")
