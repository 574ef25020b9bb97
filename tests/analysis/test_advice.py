"""The sentences of an analysis, each for the finding that causes it."""

import math

import pytest

import undertow as ut
from tests.analysis.analyses import analysis_of, row_of
from undertow.analysis.advice import advice

SCALING = ut.Scaling(lambda p: p["u"])


def test_nothing_to_say_about_a_balanced_symmetry():
    assert advice(analysis_of(row_of())) == []


def test_no_symmetry_is_one_sentence():
    (sentence,) = advice(analysis_of())
    assert sentence.startswith("No exponential symmetry was found")


def test_symmetries_without_noise_stay_where_they_are():
    (sentence,) = advice(analysis_of(symmetries=(object(),)))
    assert "the charges stay where they are" in sentence


@pytest.mark.parametrize(
    ("symmetry", "decay", "words"),
    [
        (SCALING, 0.0, "the norm only grows, without bound"),
        (SCALING, 0.1, "2 directions have no finite equilibrium"),
        (object(), 0.0, "2 directions have no finite equilibrium"),
    ],
)
def test_a_norm_grows_without_bound_only_for_a_scaling_without_weight_decay(symmetry, decay, words):
    analysis = analysis_of(row_of(infinite=2), symmetries=(symmetry,), weight_decay=decay)
    (sentence,) = advice(analysis)
    assert sentence.startswith(f"rescaling of u against w: {words}")


def test_dead_generators_are_counted():
    (sentence,) = advice(analysis_of(row_of(dead=3)))
    assert sentence == "rescaling of u against w: 3 of 4 have no gradient on this data (dead); left out."


@pytest.mark.parametrize(("moved", "relaxation", "count"), [(1.06, 1234.0, 1), (1.05, 1234.0, 0), (9.0, math.inf, 0)])
def test_relaxation_is_reported_where_weights_change_in_finite_time(moved, relaxation, count):
    sentences = advice(analysis_of(row_of(moved=moved, relaxation=relaxation)))
    assert len(sentences) == count
    for sentence in sentences:
        assert "unbalanced by 25%" in sentence
        assert "in about 1,234 steps (the median; 56,789 for the slowest)" in sentence
        assert "by up to a factor 1.1" in sentence


def test_every_row_has_its_own_sentences():
    rows = row_of(name="first", dead=1), row_of(name="second"), row_of(name="third", dead=2, infinite=1)
    sentences = advice(analysis_of(*rows))
    assert [sentence.partition(":")[0] for sentence in sentences] == ["first", "third", "third"]


@pytest.mark.parametrize(
    ("trace_then", "step_then", "words"),
    [
        (1.0, 0.4, ["Tr H falls from 4 ± 0.1 to 1 ± 0.2", "to a step size 4.0 times as large"]),
        (1.0, 0.11, ["Tr H falls from 4 ± 0.1 to 1 ± 0.2"]),
        (9.0, 0.05, ["Tr H rises from 4 ± 0.1 to 9 ± 0.2", "may not be stable after about 1,234 steps"]),
    ],
)
def test_the_sharpness_at_equilibrium_decides_the_advice_on_the_step(trace_then, step_then, words):
    rows = row_of(relaxation=1234.0), row_of(relaxation=math.inf)
    sentences = advice(analysis_of(*rows, sharpness_then=(trace_then, 0.2), largest_step_then=step_then))
    assert len(sentences) == len(words)
    for sentence, part in zip(sentences, words, strict=True):
        assert part in sentence


@pytest.mark.parametrize(("relaxation", "when"), [(math.inf, "later"), (0.2, "after about 1 step")])
def test_a_model_that_noise_sharpens_at_once_or_never_gets_no_number_of_zero_steps(relaxation, when):
    rows = (row_of(relaxation=relaxation),)
    sentences = advice(analysis_of(*rows, sharpness_then=(9.0, 0.2), largest_step_then=0.01))
    assert sentences[-1].endswith(f"a step size that is stable now may not be stable {when}.")


@pytest.mark.parametrize(("step_size", "warned"), [(0.1, False), (0.11, True)])
def test_a_step_above_the_largest_one_diverges(step_size, warned):
    sentences = advice(analysis_of(row_of(), step_size=step_size))
    assert sentences == ["The step size 0.11 is above 0.1, the largest at which gradient descent is stable."] * warned


def test_the_limit_after_zero_loss_is_the_last_sentence():
    assert advice(analysis_of(row_of(), limit="Label noise moves it.")) == ["Label noise moves it."]


def test_an_exact_trace_has_no_error():
    sentences = advice(analysis_of(row_of(), sharpness=(4.0, 0.0), sharpness_then=(3.0, 0.0), largest_step_then=0.1))
    assert sentences[0].startswith("At equilibrium Tr H falls from 4 to 3;")


def test_a_norm_with_an_equilibrium_does_not_grow_without_bound():
    assert advice(analysis_of(row_of(), symmetries=(SCALING,))) == []
