"""The census alone names the missing readers, those that are too many, and the layer that is meant."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.zoo import build, square
from undertow.torch import Axis, Symmetry, census
from undertow.torch.census.scaling.layers import LayerMatch
from undertow.torch.census.scaling.moves import MeasuredChange
from undertow.torch.census.scaling.verdict import (
    PROOF,
    ScaledLayer,
    ScalingIndex,
    census_layers,
    census_verdict,
    scaling_symmetries,
    with_measurement,
)

pytestmark = pytest.mark.torch


def verdict(found, match):
    return census_verdict(ScalingIndex(found), match)


@dataclass(frozen=True)
class Found:
    """A census with given symmetries."""

    symmetries: tuple[Symmetry, ...]
    approximate: tuple[Symmetry, ...] = ()
    broken: tuple[Symmetry, ...] = ()
    without_gradient: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    free: tuple[str, ...] = ()


def axis(parameter, role, index, length=None, dimensions=2):
    index = np.asarray(index).reshape(len(index), -1)
    return Axis(parameter, {"in": 1}.get(role, 0), index, length or int(index.max()) + 1, dimensions, 0.0, role)


def gain(source, *readers, size=6):
    written = (axis(f"{source}.weight", "gain", range(size), dimensions=1),)
    read = tuple(axis(f"{reader}.weight", "in", range(size)) for reader in readers)
    return Symmetry("gain against readers", read, written, 1, exact=True, change=1e-7)


TWO = Found((gain("a.norm", "a.q", "a.k"), gain("b.norm", "b.up")), free=("c.weight",), frozen=("d.weight",))


def test_layers_are_those_of_all_parameters():
    assert census_layers(TWO) == ["a.q", "a.k", "a.norm", "b.up", "b.norm", "c", "d"]


def test_the_symmetry_that_contains_the_map_is_the_proof():
    layer = verdict(TWO, LayerMatch("a.norm", ("a.k", "a.q")))
    assert (layer.verdict, layer.missing, layer.extra, layer.instead) == ("preserves", (), (), ())
    assert layer.reason.startswith(PROOF)


@pytest.mark.parametrize(
    ("source", "readers", "missing", "extra", "instead"),
    [
        ("a.norm", ("a.q",), ("a.k",), (), ()),
        ("a.norm", ("a.q", "a.k", "c"), (), ("c",), ()),
        ("a.norm", ("a.q", "c"), ("a.k",), ("c",), ()),
        ("a.norm", ("b.up",), (), (), ("b.norm",)),
        ("c", ("a.q", "a.k"), (), (), ("a.norm",)),
    ],
)
def test_a_wrong_map_is_explained(source, readers, missing, extra, instead):
    layer = verdict(TWO, LayerMatch(source, readers))
    assert (layer.verdict, layer.missing, layer.extra, layer.instead) == ("changes", missing, extra, instead)
    assert all(name in layer.reason for name in (*missing, *extra, *instead))


def test_many_missing_experts_are_folded_in_the_reason():
    found = Found((gain("norm", "gate", *(f"experts.{k}.{name}" for k in range(8) for name in ("a", "b"))),))
    layer = verdict(found, LayerMatch("norm", ("gate",)))
    assert len(layer.missing) == 16
    assert layer.reason == "experts.*.a, experts.*.b read norm too"


def test_a_layer_without_symmetries_is_unproved():
    assert verdict(TWO, LayerMatch("c", ("d",))).verdict == "unproved"
    assert "frozen" in verdict(TWO, LayerMatch("d", ("c",))).reason
    approximate = Found((), approximate=TWO.symmetries[:1])
    assert "eps" in verdict(approximate, LayerMatch("a.norm", ("a.q", "a.k"))).reason


def test_a_bias_that_the_symmetry_leaves_must_not_be_divided():
    found = replace(TWO, free=("a.norm.bias",))
    match = LayerMatch("a.norm", ("a.q", "a.k"))
    assert "a.norm.bias must not be divided" in verdict(found, match).reason
    assert verdict(replace(found, without_gradient=("a.norm.bias",)), match).verdict == "preserves"


@pytest.mark.parametrize(
    ("written", "read", "length", "reason"),
    [
        ([[0, 1], [2, 3]], [[0], [1]], 4, "equal in groups of 2 channels"),
        ([0, 1], [0, 1], 4, "only 2 of the 4 channels"),
        ([0, 1, 2, 3], [3, 2, 1, 0], 4, "in another order"),
        ([2, 3], [0, 1], 4, ""),
        ([0, 1], [[0, 2], [1, 3]], 2, ""),
    ],
)
def test_the_channels_must_be_those_that_the_map_scales(written, read, length, reason):
    minus = (axis("v.weight", "out", written, length),)
    symmetry = Symmetry("OV", (axis("o.weight", "in", read),), minus, 1, exact=True, change=0.0)
    layer = verdict(Found((symmetry,)), LayerMatch("v", ("o",)))
    assert layer.verdict == ("changes" if reason else "preserves")
    assert reason in layer.reason


def test_queries_against_keys_are_no_scaling_map():
    model, batch, loss = build("GPT-2")
    kinds = {symmetry.kind for symmetry in scaling_symmetries(census(model, batch, loss))}
    assert kinds == {"OV", "gain against readers"}


MEASURED = [
    (ScaledLayer("a", ("b",), "unproved", ""), MeasuredChange(1e-15, 1e-15), "preserves"),
    (ScaledLayer("a", ("b",), "changes", "", missing=("c",)), MeasuredChange(1e-15, 1e-15), "preserves"),
    (ScaledLayer("a", ("b",), "preserves", ""), MeasuredChange(1e-15, float("nan")), "preserves"),
    (ScaledLayer("a", ("b",), "preserves", ""), MeasuredChange(1e-15, 0.1), "changes"),
    (ScaledLayer("a", ("b",), "unproved", ""), MeasuredChange(0.1, 1e-15), "changes"),
    (ScaledLayer("a", ("b",), "unproved", ""), MeasuredChange(0.0, 0.0, used=False), "unproved"),
    (ScaledLayer("a", ("b",), "unproved", ""), MeasuredChange(0.0, 0.0, problem="a has no weight"), "changes"),
]


@pytest.mark.parametrize(("layer", "measured", "verdict"), MEASURED)
def test_the_measured_change_decides(layer, measured, verdict):
    after = with_measurement(layer, measured, {})
    assert after.verdict == verdict
    assert not (after.missing and verdict == "preserves")


def test_readers_of_the_trace_are_missing_where_the_census_knows_nothing():
    layer = ScaledLayer("norm", ("q", "experts.gate_up_proj"), "unproved", "")
    measured = MeasuredChange(0.2, 0.1, readers=("q", "indexer.wk", "experts"))
    after = with_measurement(layer, measured, {})
    assert (after.missing, after.reason) == (("indexer.wk",), "indexer.wk reads norm too")
    known = with_measurement(replace(layer, missing=("k",)), measured, {})
    assert known.missing == ("k",)


def test_a_tie_is_the_reason():
    layer = ScaledLayer("norm", ("head",), "unproved", "")
    after = with_measurement(layer, MeasuredChange(0.2, 0.1), {"head": "embedding"})
    assert after.reason == "head shares its weight with embedding"


def test_a_census_of_a_network_without_norms_has_its_layers():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    assert census_layers(census(model, torch.randn(4, 3), square)) == ["0", "2"]
