"""The census of a narrow twin, carried to a wide and deep network, is the census of that network."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.transfers import CONFIGURATIONS, configuration, contents, network
from undertow.torch import Census, census, equilibrate, narrow_twin
from undertow.torch.census.batches import mean_square, random_batch
from undertow.torch.census.transfer import carried
from undertow.torch.census.twins import build_model

pytestmark = [pytest.mark.torch, pytest.mark.slow]

FAST = ("Llama", "GPT2", "Qwen3", "ViT")


@functools.cache
def narrow_census(name, **changes):
    twin = narrow_twin(configuration(name, **changes))
    return census(twin, random_batch(twin), mean_square)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CONFIGURATIONS
])  # fmt: skip
def test_the_transferred_census_is_the_census_of_the_network(name):
    torch.manual_seed(0)
    model = network(name)
    batch = random_batch(model)
    direct = census(model, batch, mean_square)
    transferred = narrow_census(name).transfer(model, batch, mean_square)
    assert len(direct) >= 4
    assert contents(transferred) == contents(direct)
    assert (transferred.free, transferred.frozen) == (direct.free, direct.frozen)
    assert transferred.structure == direct.structure
    assert all(symmetry.change < 1e-5 for symmetry in transferred)


def test_a_stored_census_is_transferred_to_half_precision(tmp_path):
    narrow_census("Llama").save(tmp_path / "twin.json")
    model = network("Llama").bfloat16()
    transferred = Census.load(tmp_path / "twin.json").transfer(model, random_batch(model), mean_square)
    assert contents(transferred) == contents(carried(narrow_census("Llama"), model.to("meta")))
    assert all(1e-3 < symmetry.change < 0.1 for symmetry in transferred)


def test_weights_do_not_change_and_the_result_moves_them():
    """The transferred census is used as any other: by `equilibrate` here, which moves along the orbits."""
    torch.manual_seed(0)
    model = network("Llama", num_hidden_layers=4)
    batches = [random_batch(model, seed=seed) for seed in range(4)]
    before = copy.deepcopy(model.state_dict())
    transferred = narrow_census("Llama").transfer(model, batches[0], mean_square)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    moved = equilibrate(model, batches, mean_square, transferred, step_size=0.1)
    assert moved.change < 1e-4


def shallow_census(name, layers):
    config = narrow_twin(configuration(name)).config
    config.num_hidden_layers = layers
    twin = build_model(config)
    return census(twin, random_batch(twin), mean_square)


def test_two_layers_are_enough_without_symmetries_between_layers():
    model = network("Llama")
    wide = shallow_census("Llama", 2).transfer(model, random_batch(model), mean_square)
    assert contents(wide) == contents(narrow_census("Llama").transfer(model, random_batch(model), mean_square))


def test_two_layers_do_not_tell_neighbours_from_all_layers():
    """BERT has a scale between each layer and the next one, which in two layers is a scale of all layers."""
    model = network("Bert")
    with pytest.raises(ValueError, match="symmetries of the narrow network do not hold"):
        shallow_census("Bert", 2).transfer(model, random_batch(model), mean_square)


def test_one_layer_is_not_enough():
    model = network("Llama")
    with pytest.raises(ValueError, match=r"one layer model\.layers\.0 where the model has 5"):
        shallow_census("Llama", 1).transfer(model, random_batch(model), mean_square)


class Encoder(nn.Module):
    """An encoder of PyTorch itself, without a configuration."""

    def __init__(self, width: int, heads: int, hidden: int, layers: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True, norm_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


def square(model, x):
    return model(x).square().mean()


def test_a_network_without_a_configuration():
    torch.manual_seed(0)
    narrow = census(Encoder(70, 7, 73, 3), torch.randn(2, 6, 70), square)
    model, batch = Encoder(64, 4, 128, 5), torch.randn(2, 6, 64)
    assert contents(narrow.transfer(model, batch, square)) == contents(census(model, batch, square))


WRONG = {
    "another architecture": (lambda: network("Qwen2"), "the model has the parameter .*bias"),
    "tied embeddings": (
        lambda: network("Llama", tie_word_embeddings=True), "census has the parameter lm_head.weight, the model has not"
    ),
    "another family": (lambda: network("GPT2"), "the (model|network of the census) has the parameter"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_network_of_another_structure_is_refused(name):
    build, sentence = WRONG[name]
    model = build()
    with pytest.raises(ValueError, match=sentence) as raised:
        narrow_census("Llama").transfer(model, random_batch(model), mean_square)
    assert "transfer(model, batch, loss)" in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_network_that_computes_something_else_is_refused(dtype):
    """In one layer a tanh follows the values that multiply the gate, which no name and no shape shows."""
    model = network("Llama").to(dtype)
    before = copy.deepcopy(model.state_dict())
    model.model.layers[2].mlp.up_proj.register_forward_hook(lambda module, args, out: torch.tanh(4 * out))
    with pytest.raises(ValueError, match=r"1 of 26 symmetries .*up against down.*layers\.2\.mlp"):
        narrow_census("Llama").transfer(model, random_batch(model), mean_square)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_sizes_with_two_meanings_are_refused():
    """In this twin the width of a head is the number of neurons, of which the network has others."""

    class Attention(nn.Module):
        def __init__(self, width, heads, extra):
            super().__init__()
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
            self.attention.extra = extra
            self.head = nn.Linear(width, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.attention(x, x, x, need_weights=False)[0]))

    narrow = census(Attention(12, 3, 4), torch.randn(2, 5, 12), square)
    with pytest.raises(ValueError, match=r"block size 4 of (QK|OV).* may be .*narrow_twin"):
        narrow.transfer(Attention(40, 5, 20), torch.randn(2, 5, 40), square)
    carried(narrow, Attention(40, 5, 8))


def test_a_census_without_a_structure_is_refused():
    with pytest.raises(ValueError, match="has no structure"):
        replace(narrow_census("GPT2"), structure=None).transfer(network("GPT2"), {}, mean_square)


def test_frozen_parameters_of_the_network_are_not_moved():
    model = network("Llama")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mlp" not in name)
    transferred = narrow_census("Llama").transfer(model, random_batch(model), mean_square)
    assert contents(transferred) == contents(census(model, random_batch(model), mean_square))
    assert all("mlp" in name for name in transferred.frozen)


def test_carrying_needs_no_weights():
    with torch.device("meta"):
        model = network("Llama", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                        num_attention_heads=32, num_key_value_heads=8, head_dim=128)  # fmt: skip
    wide = carried(narrow_census("Llama", num_key_value_heads=2), model)
    values = next(s for s in wide if s.kind == "OV")
    assert (values.size, values.block, len(wide)) == (1024, 128, 32 * 5 + 1)
    queries = next(axis for axis in values.axes if "o_proj" in axis.parameter)
    np.testing.assert_array_equal(queries.index[128], [512, 640, 768, 896])  # the second group of four heads
