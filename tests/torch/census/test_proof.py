"""Candidates that only seem to be symmetries, and moves that change the outputs."""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.dropping import largest_change, rows, two_layers
from tests.torch.known import orbit_trial, the
from tests.torch.zoo import HEADS, KEY_HEADS, WIDTH, language, square, tokens
from undertow.torch import census
from undertow.torch.census.proof import LARGE_SCALES, situations

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("name", "kind"), [("relu", "rescaling"), ("GPT-2", "QK"), ("GPT-2", "OV"), ("Qwen2", "OV")])
def test_a_symmetry_without_its_bias_changes_the_outputs(name, kind):
    symmetries, runs_of = orbit_trial(name)
    symmetry = the(symmetries, kind)
    assert runs_of.change(symmetry) <= 1e-5
    bare = lambda side: tuple(axis for axis in side if axis.role != "bias")
    assert len(bare(symmetry.axes)) < len(symmetry.axes)
    assert runs_of.change(replace(symmetry, plus=bare(symmetry.plus), minus=bare(symmetry.minus))) >= 1e-2


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
def test_a_gain_without_one_of_its_readers_changes_the_outputs(name):
    symmetries, runs_of = orbit_trial(name)
    symmetry = the(symmetries, "gain against readers")
    assert len(symmetry.plus) > 1
    for omitted in range(len(symmetry.plus)):
        some = symmetry.plus[:omitted] + symmetry.plus[omitted + 1 :]
        assert runs_of.change(replace(symmetry, plus=some)) >= 1e-2


def test_rope_breaks_gl_of_a_head():
    symmetries, runs_of = orbit_trial("Llama")
    symmetry = the(symmetries, "QK on RoPE pairs")
    width = WIDTH // HEADS
    numbers = np.arange(HEADS * width).reshape(KEY_HEADS, HEADS // KEY_HEADS, width).transpose(0, 2, 1)
    full = replace(
        symmetry,
        plus=(replace(symmetry.plus[0], index=numbers.reshape(KEY_HEADS * width, -1)),),
        minus=(replace(symmetry.minus[0], index=np.arange(KEY_HEADS * width)[:, None]),),
    )
    assert runs_of.change(full) >= 1e-2
    assert runs_of.change(replace(full, block=width)) >= 1e-2
    assert runs_of.change(symmetry) <= 1e-5


def test_a_move_of_the_gate_in_place_of_up_changes_the_outputs():
    symmetries, runs_of = orbit_trial("Llama")
    symmetry = the(symmetries, "up against down")
    (up,) = symmetry.minus
    gate = replace(up, parameter=up.parameter.replace("up_proj", "gate_proj"))
    assert runs_of.change(replace(symmetry, minus=(gate,))) >= 1e-2


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "conv"])
def test_approximate_symmetries_are_exact_without_eps(name):
    symmetries, runs_of = orbit_trial(name)
    assert symmetries.approximate
    for symmetry in symmetries.approximate:
        assert runs_of.change(symmetry, eps=0.1) > 1e-3
        assert runs_of.change(symmetry, eps=1e-12) < 1e-5


SATURATING = {
    "ReLU6": nn.ReLU6,
    "Hardtanh": nn.Hardtanh,
    "a wider Hardtanh": lambda: nn.Hardtanh(-3.0, 3.0),
}


@pytest.mark.parametrize("name", SATURATING)
def test_activations_that_saturate_are_rejected(name):
    """At small inputs these activations equal a ReLU or the identity."""
    torch.manual_seed(0)
    x = 0.1 * torch.randn(6, 5)
    build = lambda act: nn.Sequential(nn.Linear(5, 7, bias=False), act, nn.Linear(7, 3))
    plain = nn.ReLU() if name == "ReLU6" else nn.Identity()
    (claimed,) = census(build(plain), x, square)
    model = build(SATURATING[name]())
    assert largest_change(model, x, square, claimed) < 1e-12  # the outputs do not differ at weights of size 1
    assert largest_change(model, x, square, claimed, scale=1000.0) > 0.1
    symmetries = census(model, x, square)
    assert len(symmetries) == len(symmetries.approximate) == 0
    assert any(
        f"at random weights times {scale:g}" in reported for reported in symmetries.unclear for scale in LARGE_SCALES
    )


def test_a_limit_that_only_the_weights_of_the_model_reach_is_detected():
    """A Hardtanh at 100,000 is linear at all random weights of the census, but not at the user's weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Hardtanh(-1e5, 1e5), nn.Linear(7, 3))
    x = torch.randn(6, 5)
    assert len(census(model, x, square)) == 1
    with torch.no_grad():
        model[0].weight.mul_(1e6)
    symmetries = census(model, x, square)
    assert len(symmetries) == 0
    assert "at the weights of the model" in symmetries.unclear[0]


def clipped(name, clip):
    import transformers

    torch.manual_seed(0)
    if name == "OLMo":
        config = transformers.OlmoConfig(
            vocab_size=40, hidden_size=24, intermediate_size=36, num_hidden_layers=1, num_attention_heads=4,
            clip_qkv=clip, pad_token_id=0, eos_token_id=1, max_position_embeddings=32,
        )  # fmt: skip
        return transformers.OlmoForCausalLM(config)
    config = transformers.MptConfig(
        vocab_size=40, d_model=24, n_heads=4, n_layers=1, max_seq_len=32, attn_config={"clip_qkv": clip}
    )
    return transformers.MptForCausalLM(config)


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("OLMo", ["up against down"], ["QK on RoPE pairs", "OV"]),
        ("MPT", ["gain against readers"] * 2, ["QK", "OV"]),
    ],
)
@pytest.mark.parametrize("clip", [8.0, 30.0])
def test_clipping_removes_the_symmetries_of_queries_keys_and_values(name, present, absent, clip):
    unclipped = census(clipped(name, None), tokens(), language)
    assert Counter(r.kind for r in unclipped) == Counter([*present, *absent])
    symmetries = census(clipped(name, clip), tokens(), language)
    assert Counter(r.kind for r in symmetries) == Counter(present)
    assert set(rows(symmetries)) <= set(rows(unclipped))


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-4, 1e-6])
def test_a_penalty_in_the_loss_breaks_the_symmetries_of_its_parameters(strength):
    model, x = two_layers(), torch.randn(6, 5)
    one, two = (symmetry.name for symmetry in census(model, x, square))
    first = census(model, x, lambda net, s: square(net, s) + strength * net[0].weight.square().sum())
    assert (rows(first), rows(first.broken)) == ([two], [one])
    assert first.broken[0].change > 0.01 * strength
    text = str(first)
    assert "1 symmetry of the outputs that the loss breaks" in text
    assert "[the loss changes by" in text
    every = census(model, x, lambda net, s: square(net, s) + strength * sum(p.square().sum() for p in net.parameters()))
    assert (rows(every), rows(every.broken)) == ([], sorted([one, two]))


def test_a_loss_of_outputs_alone_breaks_no_symmetry():
    model, x = two_layers(), torch.randn(6, 5)
    expected = rows(census(model, x, square))
    for loss in (
        lambda net, s: square(net, s) + 1e-2 * net(s).abs().mean(),
        lambda net, s: square(net, s) + (net(2 * s) - net(s)).square().mean(),
    ):
        symmetries = census(model, x, loss)
        assert (rows(symmetries), symmetries.broken) == (expected, ())


def test_an_invariant_penalty_keeps_the_symmetry():
    """The path norm of two layers does not change when their neurons are rescaled; other neurons are not covered."""
    model, x = two_layers(), torch.randn(6, 5)
    one, two = (symmetry.name for symmetry in census(model, x, square))
    symmetries = census(model, x, lambda net, s: square(net, s) + (net[2].weight.abs() @ net[0].weight.abs()).sum())
    assert (rows(symmetries), rows(symmetries.broken)) == ([one], [two])


def test_a_loss_of_zero_refutes_no_symmetry():
    """With targets that the model fits, the loss is rounding and refutes no symmetry."""
    model, x = two_layers(), torch.randn(6, 5)
    with torch.no_grad():
        y = copy.deepcopy(model).double()(x.double())
    symmetries = census(model, x, lambda net, s: (net(s) - y.to(s.dtype)).square().mean())
    assert len(symmetries) == 2


def test_moments_and_proofs_use_different_random_numbers():
    for stochastic in (False, True):
        runs_of = situations(0, stochastic)
        assert len({s.dropout_seed for s in runs_of}) == len(runs_of)
        assert {s.scale for s in runs_of} == {1.0, *LARGE_SCALES}
        assert sum(s.own_weights for s in runs_of) == 1
    seeds = []

    class Draws(nn.Linear):
        def forward(self, x):
            if x.dtype == torch.float64:
                seeds.append(torch.initial_seed())
            return super().forward(nn.functional.dropout(x, 0.1))

    census(nn.Sequential(Draws(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.randn(4, 5), square)
    # two evaluations of two draws each, and the situations
    assert len(set(seeds)) >= 4 + len(situations(0, True))


def test_situations_that_amplify_rounding_are_left_out():
    """Many layers of tanh after a rescaling amplify rounding at large weights until the outputs are random."""
    torch.manual_seed(0)
    layers = [layer for _ in range(60) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 32), nn.Tanh(), *layers, nn.Linear(32, 3))
    (symmetry,) = census(model, torch.randn(6, 8), square)
    assert symmetry.parameters == ("2.weight", "0.weight", "0.bias")
