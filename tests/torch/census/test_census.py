"""The census against networks whose symmetries are known, and the proofs against moves that must fail."""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.zoo import HEADS, KEY_HEADS, KNOWN, WIDTH, adapter, build, language, square, tokens
from undertow.torch import census
from undertow.torch._copies import as_double, model_copy, randomise, unwrap
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.proof import Bench

pytestmark = pytest.mark.torch


def row(symmetry: Symmetry) -> tuple:
    sides = (tuple(sorted(map(str, side))) for side in (symmetry.minus, symmetry.plus))
    return (symmetry.kind, symmetry.size, symmetry.block, *sides)


def refuse_wrong_answer(name, found):
    known = KNOWN[name]
    wanted = [(kind, size, block, tuple(sorted(a)), tuple(sorted(b))) for kind, size, block, a, b in known.exact]
    assert sorted(map(row, found)) == sorted(wanted)
    assert Counter((r.kind, r.size) for r in found.approximate) == Counter(known.scales)
    assert all(r.change <= 1e-5 for r in found)
    assert found.unclear == ()


@pytest.mark.parametrize("name", KNOWN)
def test_exactly_the_known_symmetries(name):
    refuse_wrong_answer(name, census(*build(name)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", KNOWN)
def test_exactly_the_known_symmetries_at_other_seeds(name, seed):
    refuse_wrong_answer(name, census(*build(name, seed), seed=100 * seed))


def bench(name):
    model, batch, loss = build(name)
    found = census(model, batch, loss)
    small = model_copy(unwrap(model), torch.float32)
    randomise(small, 7)
    return found, Bench(small, loss, as_double(batch, torch.float32))


def the(found, kind):
    return next(symmetry for symmetry in found if symmetry.kind == kind)


@pytest.mark.parametrize(("name", "kind"), [("relu", "rescaling"), ("GPT-2", "QK"), ("GPT-2", "OV"), ("Qwen2", "OV")])
def test_a_bias_left_behind_breaks_it(name, kind):
    found, tried = bench(name)
    symmetry = the(found, kind)
    assert tried.change(symmetry) <= 1e-5
    bare = lambda side: tuple(axis for axis in side if axis.role != "bias")
    assert len(bare(symmetry.axes)) < len(symmetry.axes)
    assert tried.change(replace(symmetry, plus=bare(symmetry.plus), minus=bare(symmetry.minus))) >= 1e-2


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
def test_a_reader_left_out_breaks_a_gain(name):
    found, tried = bench(name)
    symmetry = the(found, "gain against readers")
    assert len(symmetry.plus) > 1
    for left in range(len(symmetry.plus)):
        some = symmetry.plus[:left] + symmetry.plus[left + 1 :]
        assert tried.change(replace(symmetry, plus=some)) >= 1e-2


def test_all_of_gl_breaks_under_rope():
    found, tried = bench("Llama")
    symmetry = the(found, "QK on RoPE pairs")
    width = WIDTH // HEADS
    numbers = np.arange(HEADS * width).reshape(KEY_HEADS, HEADS // KEY_HEADS, width).transpose(0, 2, 1)
    whole = replace(
        symmetry,
        plus=(replace(symmetry.plus[0], index=numbers.reshape(KEY_HEADS * width, -1)),),
        minus=(replace(symmetry.minus[0], index=np.arange(KEY_HEADS * width)[:, None]),),
    )
    assert tried.change(whole) >= 1e-2
    assert tried.change(replace(whole, block=width)) >= 1e-2
    assert tried.change(symmetry) <= 1e-5


def test_a_gate_does_not_scale_against_down():
    found, tried = bench("Llama")
    symmetry = the(found, "up against down")
    (up,) = symmetry.minus
    gate = replace(up, parameter=up.parameter.replace("up_proj", "gate_proj"))
    assert tried.change(replace(symmetry, minus=(gate,))) >= 1e-2


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "conv"])
def test_what_is_approximate_is_broken_by_eps_alone(name):
    found, tried = bench(name)
    assert found.approximate
    for symmetry in found.approximate:
        assert tried.change(symmetry, eps=0.1) > 1e-3
        assert tried.change(symmetry, eps=1e-12) < 1e-5


OPTIONS = {
    "rsLoRA": {"use_rslora": True},
    "biases": {"lora_bias": True},
    "dropout": {"lora_dropout": 0.2},
    "PiSSA": {"init_lora_weights": "pissa"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_variants_of_adapters(name):
    torch.manual_seed(0)
    found = census(adapter(**OPTIONS[name]), tokens(), language)
    refuse_wrong_answer("LoRA", found)
    assert all("lora" not in name for name in found.frozen)


def test_an_adapter_of_a_fused_layer_with_transposed_weights():
    torch.manual_seed(0)
    model = adapter(KNOWN["GPT-2"].build, target_modules=["c_attn"], fan_in_fan_out=True)
    found = census(model, tokens(), language)
    assert [(r.kind, r.block) for r in found] == [("LoRA", 3)] * 2


def test_weight_norm_is_a_scale_of_its_own():
    torch.manual_seed(0)
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 8))
    found = census(nn.Sequential(normed, nn.ReLU(), nn.Linear(8, 3)), torch.randn(6, 5), square)
    assert sorted((r.kind, r.size) for r in found) == [("rescaling", 8), ("weight norm", 8)]
    (alone,) = (r for r in found if r.kind == "weight norm")
    assert str(alone.plus[0]) == "0.parametrizations.weight.original1[i, :]"
    assert not alone.minus


class Depthwise(nn.Module):
    """A convolution whose channels do not mix between two that mix them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 1)
        self.depth = nn.Conv2d(8, 8, 3, groups=8)

    def forward(self, x):
        return self.last(torch.relu(self.depth(torch.relu(self.first(x)))))


class Residual(nn.Module):
    """A stream that two layers write and two read."""

    def __init__(self):
        super().__init__()
        self.into, self.inner, self.back, self.out = (nn.Linear(*s) for s in ((5, 8), (8, 12), (12, 8), (8, 3)))

    def forward(self, x):
        stream = torch.relu(self.into(x))
        return self.out(stream + self.back(torch.relu(self.inner(stream))))


def test_axes_in_two_relations_and_streams():
    torch.manual_seed(0)
    found = census(Depthwise(), torch.randn(4, 3, 9, 9), square)
    assert [(r.kind, r.size) for r in found] == [("rescaling", 8), ("rescaling", 8)]
    assert [set(r.parameters) for r in found] == [
        {"depth.weight", "first.weight", "first.bias"},
        {"last.weight", "depth.weight", "depth.bias"},
    ]
    found = census(Residual(), torch.randn(6, 5), square)
    assert [(r.kind, r.size, len(r.minus), len(r.plus)) for r in found] == [
        ("rescaling", 8, 4, 2),
        ("rescaling", 12, 2, 1),
    ]


def test_fused_layers_of_unequal_parts():
    """Phi-3: queries, keys and values in one matrix, gate and up in another."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Phi3Config(
        vocab_size=40, hidden_size=24, intermediate_size=36, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    found = census(transformers.Phi3ForCausalLM(config), tokens(), language)
    kinds = ["QK on RoPE pairs", "OV", "up against down", *["gain against readers"] * 3]
    assert Counter(r.kind for r in found) == Counter(kinds)
    assert [(r.kind, r.size) for r in found.approximate] == [("whole scale", 1)]


def other(name):
    """Networks that fuse queries, keys and values head by head, or turn half of a head by RoPE."""
    import transformers

    size = {"vocab_size": 40, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "intermediate_size": 60}
    if name == "GPT-NeoX":
        config = transformers.GPTNeoXConfig(**size, **marks, rotary_pct=0.5, max_position_embeddings=32)
        return transformers.GPTNeoXForCausalLM(config)
    if name == "BLOOM":
        return transformers.BloomForCausalLM(
            transformers.BloomConfig(vocab_size=40, hidden_size=48, n_layer=1, n_head=4)
        )
    return transformers.PhiForCausalLM(transformers.PhiConfig(**size, **marks, partial_rotary_factor=0.5))


HALF = [("QK on RoPE pairs", 12, 1), ("QK", 24, 6), ("OV", 48, 12), *[("gain against readers", 48, 1)] * 3]
OTHERS = {
    "GPT-NeoX": HALF,
    "BLOOM": [("QK", 48, 12), ("OV", 48, 12), *[("gain against readers", 48, 1)] * 2],  # its head is tied
    "Phi": HALF[:-1],  # attention and the MLP read one norm
}


@pytest.mark.parametrize("name", OTHERS)
def test_heads_in_parts(name):
    torch.manual_seed(0)
    found = census(other(name), tokens(), language)
    assert Counter((r.kind, r.size, r.block) for r in found) == Counter(OTHERS[name])
    assert found.unclear == ()
    (values,) = (r for r in found if r.kind == "OV")
    if name != "Phi":
        assert str(values.minus[0]).endswith("query_key_value.weight[48 of 24:144, :]")
        # head by head: queries, keys and values of twelve each
        assert values.minus[0].index[:, 0].reshape(4, 12).tolist() == [[*range(k, k + 12)] for k in (24, 60, 96, 132)]


def everything(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [(m.training, p.requires_grad) for m in model.modules() for p in m.parameters(recurse=False)]
    return state, flags, torch.random.get_rng_state(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", ["conv", "Llama"])
def test_the_model_is_not_touched(name):
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
    refuse_wrong_answer("relu", census(half, batch.to(dtype), loss))
    assert next(half.parameters()).dtype == dtype


# torch's own, when it loads its compiler
compiles = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@compiles
def test_wrappers_are_seen_through():
    model, batch, loss = build("relu")
    refuse_wrong_answer("relu", census(torch.compile(model), batch, loss))
    refuse_wrong_answer("relu", census(nn.DataParallel(model), batch, loss))


def test_distributed_training_is_seen_through(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model, batch, loss = build("relu")
        refuse_wrong_answer("relu", census(nn.parallel.DistributedDataParallel(model), batch, loss))
    finally:
        torch.distributed.destroy_process_group()


@compiles
def test_a_model_compiled_in_place():
    model, batch, loss = build("relu")
    model.compile()
    refuse_wrong_answer("relu", census(model, batch, loss))


def test_frozen_parameters_take_their_symmetries_with_them():
    model, batch, loss = build("relu")
    model[0].weight.requires_grad_(False)
    found = census(model, batch, loss)
    assert found.frozen == ("0.weight",)
    assert [r.parameters for r in found] == [("4.weight", "2.weight", "2.bias")]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter of the model trains"):
        census(model, batch, loss)


def test_dropout_between_factors_breaks_gl():
    """Two linear layers have GL(8); with dropout between them each unit has its own scale and no more."""
    torch.manual_seed(0)
    for between, block in ((nn.Identity(), 8), (nn.Dropout(0.4), 1)):
        (symmetry,) = census(nn.Sequential(nn.Linear(5, 8), between, nn.Linear(8, 3)), torch.randn(6, 5), square)
        assert (symmetry.size, symmetry.block) == (8, block)


def test_weights_that_are_not_finite_do_not_matter():
    """The census draws its own."""
    model, batch, loss = build("relu")
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    refuse_wrong_answer("relu", census(model, batch, loss))


def test_a_batch_of_a_tokenizer_is_read_by_attributes():
    import transformers

    model, batch, _ = build("LoRA")
    given = transformers.BatchEncoding(batch)
    found = census(model, given, lambda net, b: net(input_ids=b.input_ids, labels=b.labels).loss)
    assert len(found) == 4


def test_threads_are_as_before():
    threads = torch.get_num_threads()
    census(*build("relu"))
    assert torch.get_num_threads() == threads


class Tied(nn.Module):
    """Encodes and decodes with one matrix."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(5, 8, bias=False)

    def forward(self, x):
        return torch.relu(self.into(x)) @ self.into.weight


def test_tied_weights_break_the_rescaling():
    torch.manual_seed(0)
    apart = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 5, bias=False))
    assert len(census(apart, torch.randn(6, 5), square)) == 1
    assert len(census(Tied(), torch.randn(6, 5), square)) == 0


def test_a_tied_head_breaks_the_final_gain():
    """Llama with and without tied embeddings: one symmetry less, and the stream's scale takes the gain along."""
    import transformers

    torch.manual_seed(0)
    facts = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    count = {}
    for tied in (False, True):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**facts, tie_word_embeddings=tied))
        found = census(model, tokens(), language)
        count[tied] = len(found)
        (stream,) = found.approximate
        assert ("model.norm.weight" in stream.parameters) == tied
    assert count[False] == count[True] + 1


def test_what_cannot_be_done_is_said():
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
        census(model, batch, lambda given, x: model(x.float()).square().mean())
    with pytest.raises(TypeError, match="one number"):
        census(model, batch, lambda given, x: given(x))
    with pytest.raises(ValueError, match="it is empty"):
        census(model, batch[:0], square)
    with pytest.raises(ValueError, match="no parameter of the model trains"):
        census(nn.ReLU(), batch, square)


def test_what_is_unclear_is_listed():
    """A norm whose eps is written into its code: its scale is no symmetry, and too near one to be silent about."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 8, bias=False), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(torch.nn.functional.layer_norm(self.first(x), (8,), eps=1e-5))

    torch.manual_seed(0)
    found = census(Normed(), torch.randn(6, 5), square)
    assert len(found) == len(found.approximate) == 0
    assert "whole parameters" in found.unclear[0]
