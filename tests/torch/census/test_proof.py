"""What only seems to be a symmetry: in one draw of dropout, at small weights, of the outputs and not of the loss."""

import copy
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.zoo import language, square, tokens
from undertow.torch import census
from undertow.torch._copies import draws_numbers
from undertow.torch.census.axes import move
from undertow.torch.census.proof import LARGE_SCALES, random_transform, situations

pytestmark = pytest.mark.torch


def rows(found):
    return sorted(symmetry.name for symmetry in found)


def largest_change(model, batch, loss, symmetry, scale=1.0, draws=range(20)):
    """Of the outputs along the orbit, in double precision at weights of another law than the census draws."""
    model = copy.deepcopy(model).double().train()
    generator = torch.Generator().manual_seed(5)
    params = {name: p.detach() for name, p in model.named_parameters()}
    params = {
        name: scale * (torch.rand(p.shape, generator=generator).double() - 0.4) / max(p[..., 0].numel(), 1) ** 0.5
        for name, p in params.items()
    }
    moved = params | move(params, symmetry, random_transform(symmetry, 7, torch.float64))
    batch = batch.double() if isinstance(batch, torch.Tensor) else batch
    worst = 0.0
    for draw in draws:
        seen = []
        for values in (params, moved):
            model.load_state_dict(values, strict=False)
            torch.manual_seed(draw)
            handle = model.register_forward_hook(lambda m, a, out, seen=seen: seen.append(getattr(out, "logits", out)))
            with torch.no_grad():
                loss(model, batch)
            handle.remove()
        worst = max(worst, float((seen[1] - seen[0]).norm() / seen[0].norm()))
    return worst


class StochasticDepth(nn.Module):
    """As torchvision has it: the whole batch, or single rows of it, dropped with probability p."""

    def __init__(self, p, mode):
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        shape = [x.shape[0] if self.mode == "row" else 1, *[1] * (x.ndim - 1)]
        return x * torch.empty(shape, dtype=x.dtype).bernoulli_(1 - self.p) / (1 - self.p)


class Stream(nn.Module):
    """A stream to which two branches add, each of which may be dropped."""

    def __init__(self, drop):
        super().__init__()
        self.into, self.out, self.drop = nn.Linear(5, 8), nn.Linear(8, 3), drop
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.left, self.right = nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x):
        stream = torch.relu(self.into(x))
        stream = stream + self.drop(self.down(torch.relu(self.up(stream))))
        return self.out(stream + self.drop(self.right(self.left(stream))))


def layer_drop(source):
    """LayerDrop: a branch is not run at all; `source` draws a number between 0 and 1."""

    class Drop(nn.Module):
        def forward(self, x):
            return x if not self.training or source() > 0.5 else torch.zeros_like(x)

    return Drop()


DROPS = {
    "batch": lambda: StochasticDepth(0.2, "batch"),
    "row": lambda: StochasticDepth(0.2, "row"),
    "often": lambda: StochasticDepth(0.5, "batch"),
    "LayerDrop": lambda: layer_drop(lambda: torch.rand([]).item()),
    "LayerDrop by Python": lambda: layer_drop(random.random),
    "LayerDrop by NumPy": lambda: layer_drop(np.random.rand),
}


@pytest.mark.parametrize("name", DROPS)
def test_a_branch_that_is_dropped_counts(name):
    """The symmetries are those of the network without dropping, whichever branches a draw leaves out."""
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    whole = census(Stream(nn.Identity()), x, square)
    assert sorted((r.size, r.block) for r in whole) == [(6, 6), (8, 1), (12, 1)]
    model = Stream(DROPS[name]())
    for seed in range(3):
        found = census(model, x, square, seed=seed)
        assert rows(found) == rows(whole)
        assert found.silent == ()
    if "by" not in name:
        assert all(largest_change(model, x, square, symmetry) < 1e-12 for symmetry in found)


@pytest.mark.parametrize("name", DROPS)
def test_generators_are_as_before(name, as_a_user):
    """Those of PyTorch, Python and NumPy; checks of types draw from Python's."""
    states = lambda: (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    x, model = torch.randn(6, 5), Stream(DROPS[name]())
    before = states()
    census(model, x, square)
    assert states() == before


def test_layers_of_a_library_that_are_dropped():
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
    assert found[0].silent == found[1].silent


def test_dropout_that_hits_nothing_in_one_draw():
    """Units are dropped in one draw of ten only: GL(4) holds in the others, one scale a unit in all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.02), nn.Linear(4, 3))
    x = torch.randn(1, 5)
    for seed in range(3):
        (symmetry,) = census(model, x.expand(3, 5).clone(), square, seed=seed)
        assert (symmetry.size, symmetry.block) == (4, 1)
        assert largest_change(model, x, square, symmetry) < 1e-12


SATURATING = {
    "ReLU6": nn.ReLU6,
    "Hardtanh": nn.Hardtanh,
    "a wider Hardtanh": lambda: nn.Hardtanh(-3.0, 3.0),
}


@pytest.mark.parametrize("name", SATURATING)
def test_activations_that_saturate(name):
    """At small inputs they are a ReLU, or linear."""
    torch.manual_seed(0)
    x = 0.1 * torch.randn(6, 5)
    build = lambda act: nn.Sequential(nn.Linear(5, 7, bias=False), act, nn.Linear(7, 3))
    plain = nn.ReLU() if name == "ReLU6" else nn.Identity()
    (claimed,) = census(build(plain), x, square)
    model = build(SATURATING[name]())
    assert largest_change(model, x, square, claimed) < 1e-12  # at weights of size 1 nothing tells them apart
    assert largest_change(model, x, square, claimed, scale=1000.0) > 0.1
    found = census(model, x, square)
    assert len(found) == len(found.approximate) == 0
    assert any(f"at random weights times {scale:g}" in said for said in found.unclear for scale in LARGE_SCALES)


def test_a_limit_that_only_the_weights_of_the_model_reach():
    """A Hardtanh at 100,000 is linear at random weights of any size; the user's own are larger."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Hardtanh(-1e5, 1e5), nn.Linear(7, 3))
    x = torch.randn(6, 5)
    assert len(census(model, x, square)) == 1
    with torch.no_grad():
        model[0].weight.mul_(1e6)
    found = census(model, x, square)
    assert len(found) == 0
    assert "at the weights of the model" in found.unclear[0]


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
    ("name", "left", "gone"),
    [
        ("OLMo", ["up against down"], ["QK on RoPE pairs", "OV"]),
        ("MPT", ["gain against readers"] * 2, ["QK", "GL"]),
    ],
)
@pytest.mark.parametrize("clip", [8.0, 30.0])
def test_clipped_queries_keys_and_values(name, left, gone, clip):
    whole = census(clipped(name, None), tokens(), language)
    assert Counter(r.kind for r in whole) == Counter([*left, *gone])
    found = census(clipped(name, clip), tokens(), language)
    assert Counter(r.kind for r in found) == Counter(left)
    assert set(rows(found)) <= set(rows(whole))


class WithComplex(nn.Module):
    """A real network that rotates its inputs by complex numbers."""

    def __init__(self, held):
        super().__init__()
        turn = torch.polar(torch.ones(4), torch.arange(4.0))
        if held == "buffer":
            self.register_buffer("turn", turn)
        else:
            self.turn = nn.Parameter(turn, requires_grad=held == "trains")
        self.into, self.out = nn.Linear(8, 7), nn.Linear(7, 3)

    def forward(self, x):
        turned = torch.view_as_real(torch.view_as_complex(x.reshape(len(x), 4, 2)) * self.turn).flatten(1)
        return self.out(torch.relu(self.into(turned) - self.into(x)))


@pytest.mark.filterwarnings("error:Casting complex")
def test_complex_parameters():
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    with pytest.raises(ValueError, match=r"the parameter turn is complex \(complex64\)"):
        census(WithComplex("trains"), x, square)
    for held in ("buffer", "frozen"):
        model = WithComplex(held)
        seen = []
        handle = model.register_forward_hook(lambda m, args, out, seen=seen: seen.append(m.turn.dtype))
        (symmetry,) = census(model, x, square)
        handle.remove()
        # were the numbers cast to real ones, the bias would move along or not all the same: look at them
        assert set(seen) == {torch.complex128, torch.complex64}
        assert symmetry.name == "rescaling, 7 scales: into.weight[i, :] against out.weight[:, i]"
        assert model.turn.dtype == torch.complex64


def test_complex_inputs_and_outputs():
    torch.manual_seed(0)

    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(5, 7), nn.Linear(7, 3)

        def forward(self, x):
            return torch.fft.fft(self.out(torch.relu(self.into(x.imag))))

    found = census(Spectrum(), torch.randn(6, 5, dtype=torch.complex64), lambda net, x: net(x).abs().square().mean())
    assert rows(found) == ["rescaling, 7 scales: into.weight[i, :], into.bias against out.weight[:, i]"]


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-4, 1e-6])
def test_a_penalty_in_the_loss_breaks_what_it_touches(strength):
    model, x = two_layers(), torch.randn(6, 5)
    one, two = (symmetry.name for symmetry in census(model, x, square))
    first = census(model, x, lambda net, s: square(net, s) + strength * net[0].weight.square().sum())
    assert (rows(first), rows(first.broken)) == ([two], [one])
    assert first.broken[0].change > 0.01 * strength
    text = str(first)
    assert "1 symmetries of the outputs that the loss breaks" in text
    assert "[the loss changes by" in text
    every = census(model, x, lambda net, s: square(net, s) + strength * sum(p.square().sum() for p in net.parameters()))
    assert (rows(every), rows(every.broken)) == ([], sorted([one, two]))


def test_a_loss_of_outputs_alone_breaks_nothing():
    model, x = two_layers(), torch.randn(6, 5)
    both = rows(census(model, x, square))
    for loss in (
        lambda net, s: square(net, s) + 1e-2 * net(s).abs().mean(),
        lambda net, s: square(net, s) + (net(2 * s) - net(s)).square().mean(),
    ):
        found = census(model, x, loss)
        assert (rows(found), found.broken) == (both, ())


def test_a_penalty_that_has_the_symmetry():
    """The path norm of two layers does not change when their neurons are rescaled; other neurons are not covered."""
    model, x = two_layers(), torch.randn(6, 5)
    one, two = (symmetry.name for symmetry in census(model, x, square))
    found = census(model, x, lambda net, s: square(net, s) + (net[2].weight.abs() @ net[0].weight.abs()).sum())
    assert (rows(found), rows(found.broken)) == ([one], [two])


def test_the_loss_is_tried_where_it_is_zero():
    """Targets that the model fits: the loss is rounding, and says nothing against a symmetry."""
    model, x = two_layers(), torch.randn(6, 5)
    with torch.no_grad():
        y = copy.deepcopy(model).double()(x.double())
    found = census(model, x, lambda net, s: (net(s) - y.to(s.dtype)).square().mean())
    assert len(found) == 2


@pytest.mark.parametrize("name", [*DROPS, "none"])
def test_whether_a_network_draws_random_numbers_is_told(name):
    drop = DROPS[name]() if name in DROPS else nn.Dropout(0.0)
    assert draws_numbers(Stream(drop), square, torch.randn(6, 5)) == (name != "none")


def test_draws_and_proofs_have_other_random_numbers():
    for stochastic in (False, True):
        tried = situations(0, stochastic)
        assert len({s.draw for s in tried}) == len(tried)
        assert {s.scale for s in tried} == {1.0, *LARGE_SCALES}
        assert sum(s.own for s in tried) == 1
    seeds = []

    class Draws(nn.Linear):
        def forward(self, x):
            if x.dtype == torch.float64:
                seeds.append(torch.initial_seed())
            return super().forward(nn.functional.dropout(x, 0.1))

    census(nn.Sequential(Draws(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.randn(4, 5), square)
    # two looks of two draws each, and the situations
    assert len(set(seeds)) >= 4 + len(situations(0, True))


def test_chaos_does_not_hide_a_symmetry():
    """Layers of tanh behind a rescaling magnify rounding at large weights until nothing of the outputs is left."""
    torch.manual_seed(0)
    layers = [layer for _ in range(60) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 32), nn.Tanh(), *layers, nn.Linear(32, 3))
    (symmetry,) = census(model, torch.randn(6, 8), square)
    assert symmetry.parameters == ("2.weight", "0.weight", "0.bias")
