"""Layers of a deep network correspond to layers of a shallow one by place, modules and settings."""

import numpy as np
import pytest
from torch import nn

from undertow.torch import Axis, Symmetry
from undertow.torch.census.layers import LayerMap, LayersError
from undertow.torch.census.structure import structure_of

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    def __init__(self, kind: str, norm: bool = False):
        super().__init__()
        self.kind, self.up, self.down = kind, nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)
        if norm:
            self.norm = nn.LayerNorm(2)


class Net(nn.Module):
    def __init__(self, *kinds: str, norm: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(Layer(kind, norm) for kind in kinds)
        self.head = nn.Linear(2, 2, bias=False)


def pair(shallow: str, deep: str) -> LayerMap:
    return LayerMap(structure_of(Net(*shallow)), structure_of(Net(*deep)))


def symmetry(*names: str, kind: str = "rescaling") -> Symmetry:
    axes = tuple(Axis(name, 0, np.arange(2)[:, None], 2) for name in names)
    return Symmetry(kind, axes[:1], axes[1:], 1, True, 0.0)


def inside(k: int) -> Symmetry:
    return symmetry(f"layers.{k}.up.weight", f"layers.{k}.down.weight")


def places(layers: LayerMap, symmetry: Symmetry, others: list[Symmetry]) -> list[tuple[str, ...]]:
    return [tuple(deep for _, deep in names) for names in layers.instances(symmetry, [symmetry, *others])]


def test_symmetries_inside_a_layer_go_to_all_layers_once():
    layers, found = pair("aaa", "aaaaaa"), [inside(k) for k in range(3)]
    carried = [name for s in found for name in places(layers, s, found)]
    assert sorted(carried) == [(f"layers.{k}.up.weight", f"layers.{k}.down.weight") for k in range(6)]


def test_two_layers_are_enough_for_what_both_have():
    layers, found = pair("aa", "aaaa"), [inside(k) for k in range(2)]
    carried = [name for s in found for name in places(layers, s, found)]
    assert sorted(carried) == [(f"layers.{k}.up.weight", f"layers.{k}.down.weight") for k in range(4)]


@pytest.mark.parametrize("shallow", ["aa", "aaa"])
def test_what_only_the_last_layer_has_goes_to_the_last_layer(shallow):
    last = symmetry(f"layers.{len(shallow) - 1}.down.weight", "head.weight")
    assert places(pair(shallow, "aaaaa"), last, []) == [("layers.4.down.weight", "head.weight")]
    first = symmetry("layers.0.up.weight", "head.weight")
    assert places(pair(shallow, "aaaaa"), first, []) == [("layers.0.up.weight", "head.weight")]


def test_kinds_of_layers_go_to_layers_of_the_same_kind():
    layers = pair("abab", "abababab")
    found = [inside(0), inside(2)]
    carried = [name[0] for s in found for name in places(layers, s, found)]
    assert sorted(carried) == [f"layers.{k}.up.weight" for k in (0, 2, 4, 6)]


def test_a_symmetry_of_all_layers_stays_one_symmetry():
    stream = symmetry("head.weight", *(f"layers.{k}.down.weight" for k in range(3)))
    (carried,) = places(pair("aba", "abbba"), stream, [])
    assert carried == ("head.weight", "layers.0.down.weight", *(f"layers.{k}.down.weight" for k in (1, 2, 3, 4)))


def test_a_symmetry_between_neighbours_goes_to_all_neighbours():
    between = [symmetry(f"layers.{k}.down.weight", f"layers.{k + 1}.up.weight") for k in range(3)]
    carried = [name for s in between for name in places(pair("aaaa", "aaaaaa"), s, between)]
    assert sorted(carried) == [(f"layers.{k}.down.weight", f"layers.{k + 1}.up.weight") for k in range(5)]


def test_the_same_number_of_layers_is_the_identity():
    own = symmetry("layers.1.up.weight", "layers.2.up.weight")
    assert places(pair("abc", "xyz"), own, []) == [own.parameters]


def test_differences_are_sentences():
    deep = structure_of(Net("a", "a", norm=True))
    with pytest.raises(LayersError, match=r"the model has the parameter layers.*norm.*network of the census has not"):
        LayerMap(structure_of(Net("a", "a")), deep).check_names()
    with pytest.raises(LayersError, match=r"census has the parameter layers.*norm.*the model has not"):
        LayerMap(deep, structure_of(Net("a", "a"))).check_names()
    with pytest.raises(LayersError, match=r"layers.2 of the model is unlike every layer layers.\*"):
        pair("aa", "aaba").check_layers()
    with pytest.raises(LayersError, match=r"one layer layers\.0 where the model has 3"):
        places(pair("a", "aaa"), inside(0), [])
    pair("aba", "abbba").check_layers()


def test_places_of_layers():
    assert pair("aba", "abbba").same_places()
    assert not pair("aba", "aabba").same_places()
