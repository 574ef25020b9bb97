"""Moments at several draws: dropped branches, and the blocks that the gradients allow."""

import pytest
import torch
from torch import nn

from tests.torch.dropping import DROPS, Stream, largest_change, rows
from tests.torch.zoo import language, square, tokens
from undertow.torch import census

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "batch" else pytest.mark.slow) for n in DROPS])
def test_dropped_branches_keep_their_symmetries(name):
    """The symmetries are those of the network without dropping, whichever branches are dropped in a draw."""
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    expected = census(Stream(nn.Identity()), x, square)
    assert sorted((r.size, r.block) for r in expected) == [(6, 6), (8, 1), (12, 1)]
    model = Stream(DROPS[name]())
    for seed in range(3):
        symmetries = census(model, x, square, seed=seed)
        assert rows(symmetries) == rows(expected)
        assert symmetries.without_gradient == ()
    if "by" not in name:
        assert all(largest_change(model, x, square, symmetry) < 1e-12 for symmetry in symmetries)


def test_layerdrop_of_transformers_does_not_change_the_census():
    """The census of OPT with LayerDrop equals that without, including the scale of the stream."""
    import transformers

    torch.manual_seed(0)
    facts = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 36,
             "max_position_embeddings": 32, "word_embed_proj_dim": 24}  # fmt: skip
    rows_of_both = [
        census(transformers.OPTForCausalLM(transformers.OPTConfig(**facts, layerdrop=p)), tokens(), language)
        for p in (0.0, 0.4)
    ]
    assert rows(rows_of_both[0]) == rows(rows_of_both[1])
    assert rows(rows_of_both[0].approximate) == rows(rows_of_both[1].approximate)
    assert rows_of_both[0].without_gradient == rows_of_both[1].without_gradient


def test_dropout_that_rarely_drops_a_unit():
    """Units are dropped in one draw of ten: GL(4) holds in the others, one scale per unit in all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.02), nn.Linear(4, 3))
    x = torch.randn(1, 5)
    for seed in range(3):
        (symmetry,) = census(model, x.expand(3, 5).clone(), square, seed=seed)
        assert (symmetry.size, symmetry.block) == (4, 1)
        assert largest_change(model, x, square, symmetry) < 1e-12


def test_dropout_between_factors_leaves_one_scale_per_unit():
    """Two linear layers have GL(8); with dropout between them there is one scale per unit only."""
    torch.manual_seed(0)
    for between, block in ((nn.Identity(), 8), (nn.Dropout(0.4), 1)):
        (symmetry,) = census(nn.Sequential(nn.Linear(5, 8), between, nn.Linear(8, 3)), torch.randn(6, 5), square)
        assert (symmetry.size, symmetry.block) == (8, block)
