"""The census finds exactly the known symmetries of networks, and does not change them."""

import copy
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.dropping import DROPS, Stream
from tests.torch.known import assert_known_symmetries, census_of
from tests.torch.zoo import KNOWN, adapter, build, language, square, tokens
from undertow.torch import census

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", KNOWN)
def test_the_census_returns_exactly_the_known_symmetries(name):
    assert_known_symmetries(name, census_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", KNOWN)
def test_the_census_does_not_depend_on_the_seed(name, seed):
    assert_known_symmetries(name, census(*build(name, seed), seed=100 * seed))


OPTIONS = {
    "rsLoRA": {"use_rslora": True},
    "biases": {"lora_bias": True},
    "dropout": {"lora_dropout": 0.2},
    "PiSSA": {"init_lora_weights": "pissa"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_symmetries_of_variants_of_adapters(name):
    torch.manual_seed(0)
    symmetries = census(adapter(**OPTIONS[name]), tokens(), language)
    assert_known_symmetries("LoRA", symmetries)
    assert all("lora" not in name for name in symmetries.frozen)


def everything(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [(m.training, p.requires_grad) for m in model.modules() for p in m.parameters(recurse=False)]
    return state, flags, torch.random.get_rng_state(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", ["conv", "Llama"])
def test_the_model_does_not_change(name):
    model, batch, loss = build(name)
    loss(model, batch).backward()
    before = everything(model)
    gradients = [g.clone() for g in before[3]]
    census(model, batch, loss)
    after = everything(model)
    assert all(torch.equal(before[0][k], after[0][k]) for k in before[0])
    assert before[1] == after[1]
    assert torch.equal(before[2], after[2])
    assert all(a is b for a, b in zip(before[3], after[3], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(gradients, after[3], strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_the_same_census(dtype):
    model, batch, loss = build("relu")
    half = copy.deepcopy(model).to(dtype)
    assert_known_symmetries("relu", census(half, batch.to(dtype), loss))
    assert next(half.parameters()).dtype == dtype


# a warning of torch when it loads its compiler
compiles = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@pytest.mark.slow
@compiles
def test_the_census_of_a_model_inside_a_wrapper():
    model, batch, loss = build("relu")
    assert_known_symmetries("relu", census(torch.compile(model), batch, loss))
    assert_known_symmetries("relu", census(nn.DataParallel(model), batch, loss))


def test_the_census_of_a_model_inside_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model, batch, loss = build("relu")
        assert_known_symmetries("relu", census(nn.parallel.DistributedDataParallel(model), batch, loss))
    finally:
        torch.distributed.destroy_process_group()


@compiles
def test_the_census_of_a_model_compiled_in_place():
    model, batch, loss = build("relu")
    model.compile()
    assert_known_symmetries("relu", census(model, batch, loss))


def passes_of(model, batch, loss):
    """Return the census and the number of forward passes that it makes."""
    calls = []

    def counted(net, x):
        calls.append(None)
        return loss(net, x)

    return census(model, batch, counted), len(calls)


@pytest.mark.parametrize(("name", "most"), [("relu", 70), ("tanh", 60), ("attention", 70), ("Llama", 65)])
def test_networks_of_plain_layers_take_few_passes(name, most):
    """Indices need no decoding where every coupling lies in a level: an output whose square is in the loss, and a unit
    that is not active, vanish without a partner."""
    symmetries, passes = passes_of(*build(name))
    assert_known_symmetries(name, symmetries)
    assert passes <= most


@pytest.mark.slow
def test_the_number_of_passes_and_the_memory_do_not_grow_with_the_network():
    """The bars of the benchmark: 24 layers take as few passes as 10, and 14 bytes per parameter beyond the model."""
    from benchmarks.torch_census import BYTES, PASSES

    facts = {}
    for task in ("census", "deep"):
        command = [sys.executable, "-m", "benchmarks.torch_census", task]
        shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        facts[task] = json.loads(shown.splitlines()[-1])
    assert (facts["census"]["symmetries"], facts["deep"]["symmetries"]) == (51, 121)  # 5 per layer, and the last gain
    assert facts["deep"]["passes"] <= min(PASSES, facts["census"]["passes"] + 4)
    assert facts["census"]["bytes_per_parameter"] < BYTES


def test_frozen_parameters_have_no_symmetries():
    model, batch, loss = build("relu")
    model[0].weight.requires_grad_(False)
    symmetries = census(model, batch, loss)
    assert symmetries.frozen == ("0.weight",)
    assert [r.parameters for r in symmetries] == [("4.weight", "2.weight", "2.bias")]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter of the model trains"):
        census(model, batch, loss)


def test_the_census_does_not_depend_on_weights_that_are_not_finite():
    """The census draws its own weights."""
    model, batch, loss = build("relu")
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    assert_known_symmetries("relu", census(model, batch, loss))


def test_the_number_of_threads_is_restored():
    threads = torch.get_num_threads()
    census(*build("relu"))
    assert torch.get_num_threads() == threads


class Tied(nn.Module):
    """An autoencoder with one matrix."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(5, 8, bias=False)

    def forward(self, x):
        return torch.relu(self.into(x)) @ self.into.weight


def test_tied_weights_break_the_rescaling():
    torch.manual_seed(0)
    untied = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 5, bias=False))
    assert len(census(untied, torch.randn(6, 5), square)) == 1
    assert len(census(Tied(), torch.randn(6, 5), square)) == 0


@pytest.mark.slow
def test_a_tied_head_breaks_the_final_gain():
    """Tied embeddings remove one symmetry of Llama, and the scale of the stream then moves the final gain."""
    import transformers

    torch.manual_seed(0)
    facts = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    count = {}
    for tied in (False, True):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**facts, tie_word_embeddings=tied))
        symmetries = census(model, tokens(), language)
        count[tied] = len(symmetries)
        (stream,) = symmetries.approximate
        assert ("model.norm.weight" in stream.parameters) == tied
    assert count[False] == count[True] + 1


def test_invalid_input_raises():
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="run the model once"):
        census(lazy, torch.randn(6, 5), square)
    lazy(torch.randn(6, 5))
    assert len(census(lazy, torch.randn(6, 5), square)) == 1
    with torch.device("meta"):
        empty = nn.Linear(5, 3)
    with pytest.raises(ValueError, match="meta device"):
        census(empty, torch.randn(6, 5), square)
    model, batch, _ = build("relu")
    with pytest.raises(ValueError, match="did not call the model"):
        census(model, batch, lambda net, x: model(x.float()).square().mean())
    with pytest.raises(TypeError, match="one number"):
        census(model, batch, lambda net, x: net(x))
    with pytest.raises(ValueError, match="it is empty"):
        census(model, batch[:0], square)
    with pytest.raises(ValueError, match="no parameter of the model trains"):
        census(nn.ReLU(), batch, square)


def test_an_unclear_candidate_is_listed():
    """The scale into a norm with a hard-coded eps is not a symmetry, but close enough to one to be reported."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 8, bias=False), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(torch.nn.functional.layer_norm(self.first(x), (8,), eps=1e-5))

    torch.manual_seed(0)
    symmetries = census(Normed(), torch.randn(6, 5), square)
    assert len(symmetries) == len(symmetries.approximate) == 0
    assert "whole parameters" in symmetries.unclear[0]


@pytest.mark.parametrize("name", DROPS)
def test_random_generators_are_restored(name, as_a_user):
    """The generators of PyTorch, Python and NumPy are restored; the type checks of the tests use Python's."""
    states = lambda: (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    x, model = torch.randn(6, 5), Stream(DROPS[name]())
    before = states()
    census(model, x, square)
    assert states() == before
