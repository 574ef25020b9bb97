"""The provenance of results and the fingerprints of computations."""

import json

import undertow
from undertow.execution.provenance import Provenance, fingerprint, provenance


def test_a_provenance_is_read_as_it_was_written():
    made = provenance({"step_size": 0.1, "name": "x"}, 3, 0.2)
    assert Provenance.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.undertow == undertow.__version__
    assert made.versions["jax"]


def test_fingerprints():
    assert fingerprint({"a": 1}) == fingerprint({"a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_fingerprints_cover_the_modules_that_are_named():
    whole, part = fingerprint({"a": 1}), fingerprint({"a": 1}, modules=["undertow.noise.label"])
    assert whole != part == fingerprint({"a": 1}, modules=["undertow.noise.label"])
    assert part != fingerprint({"a": 1}, modules=["undertow.estimate"])
