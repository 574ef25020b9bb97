"""The table of a census has one row for the same symmetry in every layer."""

from dataclasses import replace

import numpy as np
import pytest

from tests.torch.known import census_of
from tests.torch.zoo import LAYERS
from undertow.torch import Axis, Symmetry
from undertow.torch.census.folding import fold_symmetries, folded_table

pytestmark = pytest.mark.torch


def chain(*places: tuple[str, str], size: int = 4) -> list[Symmetry]:
    """Return a rescaling for each pair of names."""
    axis = lambda name: Axis(name, 0, np.arange(size)[:, None], size)
    return [Symmetry("rescaling", (axis(a),), (axis(b),), 1, True, 1e-7) for a, b in places]


def test_layers_of_a_language_model_are_folded():
    taken = census_of("Llama")
    rows = fold_symmetries(taken.symmetries)
    assert [(row.module, row.symmetries[0].kind, len(row.symmetries)) for row in rows] == [
        ("model.layers.*.self_attn", "QK on RoPE pairs", LAYERS),
        ("model.layers.*.self_attn", "OV", LAYERS),
        ("model.layers.*.mlp", "up against down", LAYERS),
        ("model.layers.*", "gain against readers", LAYERS),
        ("model.layers.*", "gain against readers", LAYERS),
        ("", "gain against readers", 1),
    ]
    assert sum(row.charges for row in rows) == sum(symmetry.generators for symmetry in taken)
    table = taken.table()
    assert f"x {LAYERS} layers" in str(table)
    assert "v_proj.weight[i, :] against o_proj.weight[:, i]" in str(table)
    assert "layers.0.mlp.down_proj.weight, layers.1.self_attn.o_proj.weight" in str(table)
    assert "<table>" in taken._repr_html_()
    assert repr(taken) == f"Census({table.title})"


def test_many_symmetries_are_printed_as_the_table():
    few = census_of("relu")
    assert "0.weight[i, :]" in str(few)
    many = replace(few, symmetries=tuple(chain(*((f"layers.{k}.a", f"layers.{k}.b") for k in range(40)))))
    assert str(many) == str(many.table())
    assert len(str(many).splitlines()) == 4
    assert "x 40 layers" in str(many)


def test_a_symmetry_of_all_layers_is_one_line():
    names = [f"layers.{k}.a" for k in range(5)]
    axes = tuple(chain((name, "head"))[0].plus[0] for name in names)
    stream = Symmetry("whole scale", axes, chain(("x", "head"))[0].minus, 1, False, 0.0)
    assert fold_symmetries([stream])[0].where == "head[i, :] against layers.*.a[i, :] (x 5)"


def test_distances_between_layers_matter():
    near = chain(("0.weight", "2.weight"), ("2.weight", "4.weight"))
    assert len(fold_symmetries(near)) == 1
    assert "*.weight[i, :]" in fold_symmetries(near)[0].where
    assert "*+2.weight[i, :]" in fold_symmetries(near)[0].where
    assert len(fold_symmetries([*near, *chain(("0.weight", "6.weight"))])) == 2


@pytest.mark.parametrize("change", [
    {"kind": "GL"}, {"block": 4}, {"exact": False},
    {"plus": (Axis("layers.9.a", 0, np.arange(1, 5)[:, None], 5),)},
    {"plus": (Axis("layers.9.a", 1, np.arange(4)[:, None], 4),)},
    {"plus": (Axis("layers.9.a", 0, np.arange(4)[:, None], 4, shift=1.0),)},
    {"plus": (Axis("layers.9.c", 0, np.arange(4)[:, None], 4),)},
], ids=str)  # fmt: skip
def test_other_symmetries_have_rows_of_their_own(change):
    same = chain(*((f"layers.{k}.a", f"layers.{k}.b") for k in (1, 9)))
    assert len(fold_symmetries(same)) == 1
    assert len(fold_symmetries([same[0], replace(same[1], **change)])) == 2


def test_a_row_in_which_only_a_part_of_the_name_has_no_number():
    table = folded_table("t", (("up to eps", chain(("a.0.x", "b.0.y"), ("a.1.x", "b.1.y"))),))
    assert table.rows[0][:4] == ("", "rescaling (up to eps)", "4 scales", "x 2")
