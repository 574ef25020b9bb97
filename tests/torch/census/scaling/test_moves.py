"""The measured change is zero for right maps in every layout of weights, and large otherwise."""

import copy

import pytest
import torch
import transformers
from torch import nn

from tests.torch.zoo import Attention, build, gpt2, language, llama_like, square, tokens
from undertow.torch.census.scaling.layers import LayerMatch, match_layers, pair_layers
from undertow.torch.census.scaling.moves import measure_scaling, model_layers

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def measured(model, batch, loss, source, *readers):
    layers = model_layers(model)
    matches = pair_layers(match_layers(source, layers), [match_layers(reader, layers) for reader in readers])
    assert matches
    assert all(match.readers for match in matches)
    return measure_scaling(model, batch, loss, matches)


def largest(*arguments):
    results = measured(*arguments)
    assert not any(result.problem for result in results)
    return max(max(result.random, result.own) for result in results)


def smallest(*arguments):
    return min(result.random for result in measured(*arguments))


class Flattened(nn.Module):
    """A convolution whose channels are flattened before a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(3 * 4, 5)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).flatten(1))


class Chain(nn.Sequential):
    """The first layers of a list, each padded with zeros to the inputs of the next."""

    def __init__(self, *layers, steps=None):
        super().__init__(*layers)
        self.steps = steps or len(layers)

    def forward(self, x):
        for layer in list(self)[: self.steps]:
            width = layer.weight.shape[-1]
            x = layer(nn.functional.pad(x, (0, width - x.shape[-1])))
        return x


def mixtral(**options):
    facts = {
        "vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 32,
    }  # fmt: skip
    config = transformers.MixtralConfig(**facts, **options)
    config._experts_implementation = "eager"
    return transformers.MixtralForCausalLM(config)


RIGHT = {
    "Conv1D": (gpt2, tokens, language, "ln_1", "c_attn"),
    "bias of a LayerNorm": (gpt2, tokens, language, "ln_2", "c_fc"),
    "values of Conv1D against the output": (gpt2, tokens, language, "c_attn", "attn.c_proj"),
    "values of in_proj against the output": (
        Attention, lambda: torch.randn(2, 6, 12), square, "in_proj_weight", "out_proj"
    ),
    "groups of heads": (lambda: llama_like("Llama"), tokens, language, "v_proj", "o_proj"),
    "groups of heads with a bias": (lambda: llama_like("Qwen2"), tokens, language, "v_proj", "o_proj"),
    "1 + w": (lambda: llama_like("Gemma"), tokens, language, "input_layernorm", "q_proj", "k_proj", "v_proj"),
    "flattened channels": (Flattened, lambda: torch.randn(3, 2, 4, 4), square, "conv", "head"),
    "experts in one tensor": (mixtral, tokens, language, "post_attention_layernorm", "gate", "gate_up_proj"),
    "up against down of all experts": (mixtral, tokens, language, "gate_up_proj", "experts.down_proj"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_map_changes_nothing(name):
    make, batch, loss, source, *readers = RIGHT[name]
    torch.manual_seed(0)
    assert largest(make(), batch(), loss, source, *readers) < 1e-12


WRONG = {
    "a reader is missing": (lambda: llama_like("Llama"), "input_layernorm", "q_proj", "k_proj"),
    "the gate": (lambda: llama_like("Llama"), "gate_proj", "down_proj"),
    "the norm after the attention of Gemma 2": (
        lambda: llama_like("Gemma2"), "post_attention_layernorm", "gate_proj", "up_proj"
    ),
    "the router is missing": (mixtral, "post_attention_layernorm", "gate_up_proj"),
    "a tied head": (lambda: llama_like("Gemma"), "model.norm", "lm_head"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_map_changes_the_outputs(name):
    make, source, *readers = WRONG[name]
    torch.manual_seed(0)
    assert smallest(make(), tokens(), language, source, *readers) > 1e-4


def test_transposed_experts_are_recognised_by_their_shapes():
    """Llama 4 stores (experts, inputs, outputs) without a flag."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.experts = nn.Module()
            self.experts.gate_up_proj = nn.Parameter(torch.randn(2, 6, 8))
            self.experts.down_proj = nn.Parameter(torch.randn(2, 4, 6))

        def forward(self, x):
            gate, up = (self.norm(x) @ self.experts.gate_up_proj).chunk(2, dim=-1)
            return (torch.sigmoid(gate) * up) @ self.experts.down_proj

    batch = torch.randn(2, 3, 6)
    assert largest(Experts(), batch, square, "norm", "gate_up_proj") < 1e-12
    assert largest(Experts(), batch, square, "gate_up_proj", "down_proj") < 1e-12


def test_the_change_is_that_of_a_move_by_hand():
    """Half of the outputs of a linear network depend on a reader that is left out."""
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.a, self.b = nn.LayerNorm(5), nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x):
            h = self.norm(x)
            return torch.cat([self.a(h), self.b(h)], dim=-1)

    model, batch = Two(), torch.randn(8, 5)
    (change,) = measure_scaling(model, batch, square, [LayerMatch("norm", ("a",))], seed=3)
    moved = copy.deepcopy(model).double()
    drawn = torch.rand(5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.5
    scales = (drawn + 0.05 * drawn.sign()).exp()
    with torch.no_grad():
        moved.norm.weight /= scales
        moved.norm.bias /= scales
        moved.a.weight *= scales
        before, after = model.double()(batch.double()), moved(batch.double())
    assert change.own == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-12)
    assert change.own > 0.01


@pytest.mark.parametrize(
    ("source", "readers", "problem"),
    [
        ("0", ("1",), "1 has no input channels"),
        ("0", ("2",), "0 has 5 channels and 2 has 7 inputs"),
        ("0", ("nothing",), "nothing has no weight"),
    ],
)
def test_layers_that_cannot_be_paired_are_named(source, readers, problem):
    model = Chain(nn.Linear(4, 5), nn.LayerNorm(7), nn.Linear(7, 2))
    (result,) = measure_scaling(model, torch.randn(3, 4), square, [LayerMatch(source, readers)])
    assert result.problem.startswith(problem)


def test_a_layer_that_the_batch_does_not_use_is_reported():
    model = Chain(nn.Linear(4, 4), nn.Linear(4, 2), steps=1)
    (result,) = measure_scaling(model, torch.randn(3, 4), square, [LayerMatch("1", ("0",))])
    assert not result.used


def test_the_model_and_the_generators_do_not_change():
    model, batch, loss = build("Llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    largest(model, batch, loss, "up_proj", "down_proj")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())


def test_weights_that_are_not_finite_leave_the_change_at_random_weights():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    (result,) = measure_scaling(model, torch.randn(3, 4), square, [LayerMatch("0", ("2",))])
    assert result.random < 1e-12
    assert result.own != result.own
