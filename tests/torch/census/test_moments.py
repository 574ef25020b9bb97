"""Moments at several draws: dropped branches, and the blocks that the gradients allow."""

import pytest
import torch
from torch import nn

from tests.torch.dropping import DROPS, Stream, largest_change, rows
from tests.torch.zoo import language, square, tokens
from undertow.torch import census

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", DROPS)
def test_dropped_branches_keep_their_symmetries(name):
    """The symmetries are those of the network without dropping, whichever branches are dropped in a draw."""
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    whole = census(Stream(nn.Identity()), x, square)
    assert sorted((r.size, r.block) for r in whole) == [(6, 6), (8, 1), (12, 1)]
    model = Stream(DROPS[name]())
    for seed in range(3):
        found = census(model, x, square, seed=seed)
        assert rows(found) == rows(whole)
        assert found.without_gradient == ()
    if "by" not in name:
        assert all(largest_change(model, x, square, symmetry) < 1e-12 for symmetry in found)


def test_layerdrop_of_transformers():
    """OPT's LayerDrop: the same census as without it, the scale of the stream included."""
    import transformers

    torch.manual_seed(0)
    facts = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 36,
             "max_position_embeddings": 32, "word_embed_proj_dim": 24}  # fmt: skip
    found = [
        census(transformers.OPTForCausalLM(transformers.OPTConfig(**facts, layerdrop=p)), tokens(), language)
        for p in (0.0, 0.4)
    ]
    assert rows(found[0]) == rows(found[1])
    assert rows(found[0].approximate) == rows(found[1].approximate)
    assert found[0].without_gradient == found[1].without_gradient


def test_dropout_that_drops_nothing_in_most_draws():
    """Units are dropped in one draw of ten: GL(4) holds in the others, one scale per unit in all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.02), nn.Linear(4, 3))
    x = torch.randn(1, 5)
    for seed in range(3):
        (symmetry,) = census(model, x.expand(3, 5).clone(), square, seed=seed)
        assert (symmetry.size, symmetry.block) == (4, 1)
        assert largest_change(model, x, square, symmetry) < 1e-12


def test_dropout_between_factors_breaks_gl():
    """Two linear layers have GL(8); with dropout between them each unit has its own scale and no more."""
    torch.manual_seed(0)
    for between, block in ((nn.Identity(), 8), (nn.Dropout(0.4), 1)):
        (symmetry,) = census(nn.Sequential(nn.Linear(5, 8), between, nn.Linear(8, 3)), torch.randn(6, 5), square)
        assert (symmetry.size, symmetry.block) == (8, block)
