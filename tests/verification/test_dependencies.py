"""A claim that rests on a missing one, or on itself, is named in a sentence; others are not affected."""

from undertow.verification import Claim
from undertow.verification.dependencies import dependency_problems


def claims(**rests_on):
    return {name: Claim("A statement.", lambda key: None, id=name, rests_on=below) for name, below in rests_on.items()}


def test_claims_in_order_have_no_problems():
    assert dependency_problems(claims(a=(), b=("a",), c=("a", "b"), d=("elsewhere",)), {"elsewhere"}) == {}


def test_a_missing_claim_is_named_with_the_nearest():
    problems = dependency_problems(claims(norm=(), b=("nrom",), c=("zzz",), d=("b",)))
    assert problems == {
        "b": "the claim 'b' rests on 'nrom', and there is no such claim; did you mean norm?",
        "c": "the claim 'c' rests on 'zzz', and there is no such claim; it is not run.",
    }


def test_every_cycle_is_found_once():
    graph = claims(a=("b",), b=("c",), c=("a",), d=("a",), e=("e",), f=("g",), g=("f",), h=())
    problems = dependency_problems(graph)
    assert set(problems) == {"a", "b", "c", "e", "f", "g"}
    assert len(set(problems.values())) == 3
    assert problems["e"] == "the claim 'e' rests on itself; it is not run."
    assert problems["b"].endswith("rest on each other; none of them is run.")
