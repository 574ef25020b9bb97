"""The gradient noise scale: its estimators, its intervals, and networks against gradients of single samples."""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import peft
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.torch.oracle import relu, relu_census, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.noise_scale import NoiseScale, NoiseScales, gradient_power

pytestmark = pytest.mark.torch


def drawn_scales(generator, measurements, samples=16, width=50, variance=20.0, signal=1.0):
    """Return the noise scale of Gaussian gradients with a known mean and covariance."""
    scales = NoiseScales(window=measurements)
    mean = np.zeros(width)
    mean[0] = signal
    for step in range(measurements):
        parts = (mean + generator.normal(size=(samples, width)) * np.sqrt(variance / width)) / samples
        total = (parts.sum(0) ** 2).sum()
        scales.add(gradient_power(step, samples, {"w": float((parts**2).sum())}, {"w": float(total)}), {})
    return scales


def test_noise_and_signal_have_no_bias():
    """With mean 1 and variance 20 the noise of 16 samples is 20/16 and the signal 1, within 4 standard errors."""
    generator = np.random.default_rng(0)
    totals = [drawn_scales(generator, 1).total for _ in range(1500)]
    for values, exact in (([t.noise for t in totals], 20 / 16), ([t.signal for t in totals], 1.0)):
        assert abs(np.mean(values) - exact) < 4 * np.std(values) / math.sqrt(len(values))


def test_intervals_contain_the_noise_scale_as_often_as_they_say():
    generator = np.random.default_rng(1)
    totals = [drawn_scales(generator, 20).total for _ in range(400)]
    covered = np.mean([t.low <= 20 <= t.high for t in totals])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 400)
    spread = np.std([t.value for t in totals])
    assert np.mean([t.error for t in totals]) == pytest.approx(spread, rel=0.2)


def test_a_signal_that_cannot_be_told_from_zero_has_no_upper_end():
    total = drawn_scales(np.random.default_rng(2), 12, signal=0.0).total
    assert total.high == math.inf
    assert total.low > 20
    assert not total.resolved
    few = drawn_scales(np.random.default_rng(2), 2).total
    assert math.isnan(few.error)
    assert math.isnan(few.low)


def test_the_numbers_of_a_decision():
    """1/(1 + batch/B), sqrt(batch/B), 1 + B/batch and 1 + batch/B."""
    scale = NoiseScale("a", 30.0, 4.0, 24.0, 39.0, noise=0.3, signal=0.1, batch_size=10.0, measurements=20)
    assert scale.noise_share == pytest.approx(1 / (1 + 10 / 30))
    assert scale.noise_share == pytest.approx(scale.noise / (scale.noise + scale.signal))
    assert scale.signal_to_noise == pytest.approx(math.sqrt(scale.signal / scale.noise))
    assert (scale.more_steps, scale.critical_batch) == (4.0, 30.0)
    assert scale.more_samples == pytest.approx(4 / 3)
    assert scale.resolved
    infinite = NoiseScale("a", math.inf, math.nan, 5.0, math.inf, 0.3, -0.1, 10.0, 20)
    assert (infinite.noise_share, infinite.signal_to_noise, infinite.more_samples) == (1.0, 0.0, 1.0)


def test_a_loss_that_is_a_sum_has_the_same_noise_scale():
    x = torch.randn(8, 5, dtype=torch.float64)
    values = []
    for factor in (1.0, 8.0):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with NoiseMonitor(model, every=1) as monitor:
            (factor * square(model, x)).backward()
            optimizer.step()
        values.append(monitor.noise_scale.total.value)
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_symmetries_and_layers_have_the_parameters_that_they_say():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    scales = monitor.noise_scale
    assert set(scales.layers) == {"0", "2"}
    assert scales.total.noise == pytest.approx(sum(layer.noise for layer in scales.layers.values()))
    (symmetry,) = scales.symmetries.values()
    assert symmetry.noise == pytest.approx(scales.of("", ["0.weight", "0.bias", "2.weight"]).noise)
    row = monitor.rows[0]
    assert row["noise_plus"] + row["noise_minus"] == pytest.approx(symmetry.noise)
    assert "gradient noise scale over 1 measurements, 8 samples per step" in str(scales)
    assert scales._repr_html_().startswith("<div><table>")


def test_before_the_first_measurement_a_sentence_is_shown():
    assert str(NoiseScales()) == "gradient noise scale: nothing was measured yet; train a step first"
    assert "nothing was measured yet" in NoiseScales()._repr_html_()


def test_the_smoothed_scale_is_that_of_the_data():
    """At fixed weights, batches drawn with replacement from 64 samples have B = tr Sigma/|g|^2 of these samples."""
    torch.manual_seed(3)
    model, x = relu(), torch.randn(64, 5, dtype=torch.float64) + 0.3
    rows = sample_gradients(model, [Part(x[k : k + 1], 1.0) for k in range(64)], square)
    mean = rows.mean(0)
    exact = float((rows - mean).square().sum() / 64 / mean.square().sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NoiseMonitor(model, every=1, window=200) as monitor:
        for _ in range(200):
            optimizer.zero_grad()
            square(model, x[torch.randint(0, 64, (16,))]).backward()
            optimizer.step()
    total = monitor.noise_scale.total
    assert total.low < exact < total.high
    assert abs(total.value - exact) < 4 * total.error
    assert total.error < 0.2 * exact
    assert len(monitor.noise_scale.history) == 200


# -- networks in the set-ups of training, against the gradients of single samples in double precision ------------------


class Part(NamedTuple):
    """One sample as a batch, and the weight of its own loss in the loss of the step."""

    batch: object
    weight: float


class SetUp(NamedTuple):
    model: nn.Module
    batches: list
    """Batches of one step, more than one with gradient accumulation."""
    loss: Callable
    parts: list[Part]
    share: float = 1.0
    """Factor of the loss of every batch."""
    options: dict = {}  # noqa: RUF012
    uncovered: set = set()  # noqa: RUF012
    autocast: bool = False
    clip: float | None = None


def sample_gradients(model, parts, loss):
    """Return the contribution of every sample to the gradient, by one backward pass each in double precision."""
    model = copy.deepcopy(model).double()
    params = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for part in parts:
        gradients = torch.autograd.grad(part.weight * loss(model, part.batch), params, allow_unused=True)
        flat = [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(gradients, params, strict=True)]
        rows.append(torch.cat(flat))
    return torch.stack(rows)


def rows_of(batch):
    """Return the samples of a batch as batches of one."""
    if isinstance(batch, dict):
        return [{key: value[k : k + 1] for key, value in batch.items()} for k in range(len(batch["input_ids"]))]
    return [tuple(x[k : k + 1] for x in batch) for k in range(len(batch[0]))]


def regression(model, batch):
    x, y = batch
    dtype = next(model.parameters()).dtype
    return (model(x if x.dtype == torch.long else x.to(dtype)) - y.to(dtype)).square().flatten(1).sum(1).mean()


def language(model, batch):
    return model(**batch).loss


def simple(model, x, y, **options):
    batch = (x, y)
    return SetUp(model, [batch], regression, [Part(row, 1 / len(x)) for row in rows_of(batch)], **options)


def vectors(count=12):
    x = torch.randn(count, 6)
    return x, torch.stack([x[:, 0] + 2, x[:, 1] - 1], 1)


def images(count=8):
    return torch.randn(count, 3, 8, 8), torch.randn(count, 2) + 3


def llama():
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def texts(count=6, length=9):
    """Return sequences of few tokens, whose frequencies are a signal."""
    tokens = torch.randint(0, 8, (count, length))
    return {"input_ids": tokens, "labels": tokens.clone()}


def texts_of(model, batch, **options):
    tokens = lambda b: (b["labels"][:, 1:] >= 0).sum().item()
    total = tokens(batch)
    parts = [Part(row, tokens(row) / total) for row in rows_of(batch)]
    return SetUp(model, [batch], language, parts, **options)


def padded():
    batch = texts()
    lengths = torch.tensor([9, 4, 7, 9, 3, 6])
    mask = (torch.arange(9) < lengths[:, None]).long()
    batch["labels"][mask == 0] = -100
    return texts_of(llama(), batch | {"attention_mask": mask})


def accumulated():
    """Return three batches, the last of which is smaller, each divided by their number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))
    batches = [vectors(5), vectors(5), vectors(3)]
    parts = [Part(row, 1 / 3 / len(batch[0])) for batch in batches for row in rows_of(batch)]
    return SetUp(model, batches, regression, parts, share=1 / 3)


def adapter():
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return texts_of(model, texts())


def tied():
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0)  # fmt: skip
    return texts_of(GPT2LMHeadModel(config), texts(), uncovered={"transformer.wpe.weight"})


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Bag(nn.Module):
    """An embedding with repeated tokens and a padding token, and a second use of the same tokens."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 5, padding_idx=0), nn.Linear(5, 2)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1) + self.embedding(tokens.flip(1))[:, 0])


def recurrent():
    net = nn.GRU(6, 5)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.head = net, nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.net(x)[0][-1])

    x, y = torch.randn(4, 10, 6), torch.randn(10, 2) + 2
    parts = [Part((x[:, k : k + 1], y[k : k + 1]), 0.1) for k in range(10)]
    # a GRU cannot be run sample by sample by vmap: its parameters are named, and the head is measured without them
    inside = {f"net.{name}" for name, _ in net.named_parameters()}
    return SetUp(Last(), [(x, y)], regression, parts, options={"batch_axis": 1}, uncovered=inside)


def mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2), nn.GroupNorm(2, 6),
        nn.Flatten(), nn.Linear(24, 2),
    )  # fmt: skip


def summed():
    """Return a set-up with the sum over samples as the loss."""
    x, y = vectors()
    loss = lambda model, batch: regression(model, batch) * len(batch[0])
    return SetUp(mlp(), [(x, y)], loss, [Part(row, 1.0) for row in rows_of((x, y))])


def half_weights():
    return texts_of(llama().bfloat16(), texts())


SET_UPS = {
    "MLP, mean": lambda: simple(mlp(), *vectors()),
    "MLP, sum": summed,
    "MLP, clipped to norm 0.1": lambda: simple(mlp(), *vectors(), clip=0.1),
    "MLP, 3 uneven batches accumulated": accumulated,
    "MLP, bf16 autocast": lambda: simple(mlp(), *vectors(), autocast=True),
    "convolutions, groups, group norm": lambda: simple(convolutions(), *images()),
    "nn.TransformerEncoderLayer": lambda: simple(Encoder(), torch.randn(8, 5, 12), torch.randn(8, 2) + 2),
    "embedding with padding, used twice": lambda: simple(Bag(), torch.randint(0, 9, (8, 4)), torch.randn(8, 2) + 2),
    "head of a GRU, sequence first": recurrent,
    "Llama": lambda: texts_of(llama(), texts()),
    "Llama, padding mask": padded,
    "Llama, bf16 autocast": lambda: texts_of(llama(), texts(), autocast=True),
    "Llama, bf16 weights": half_weights,
    "GPT-2, tied embedding": tied,
    "LoRA on Llama": adapter,
}
"""At least twelve set-ups; the bar is 2 %."""


def measured_scale(set_up):
    model = copy.deepcopy(set_up.model).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    with NoiseMonitor(model, every=1, **set_up.options) as monitor:
        for batch in set_up.batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=set_up.autocast):
                value = set_up.share * set_up.loss(model, batch)
            value.backward()
        if set_up.clip:
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), set_up.clip) > set_up.clip
        optimizer.step()
    return monitor.noise_scale


def exact_scale(set_up):
    """Return the noise scale from the gradients of single samples in double precision."""
    model = copy.deepcopy(set_up.model)
    for name, parameter in model.named_parameters():
        if name in set_up.uncovered:
            parameter.requires_grad_(False)
    rows = sample_gradients(model, set_up.parts, set_up.loss)
    count, total = len(rows), rows.sum(0)
    noise = float((rows - total / count).square().sum()) * count / (count - 1)
    signal = float(total.square().sum()) - noise
    return noise, signal, count * noise / signal


@pytest.mark.parametrize("name", SET_UPS)
def test_the_noise_scale_of_networks_is_that_of_their_samples(name):
    """The table is printed by `pytest -s -k noise_scale_of_networks`."""
    torch.manual_seed(0)
    set_up = SET_UPS[name]()
    scales = measured_scale(set_up)
    noise, signal, exact = exact_scale(set_up)
    assert signal > noise / 20, "the set-up has too little signal for a comparison"
    measured = scales.total
    error = abs(measured.value / exact - 1)
    print(f"\n{name:36s} | {measured.value:9.4g} | {exact:9.4g} | {error:.1e}")
    assert set(scales.uncovered) == set_up.uncovered
    assert abs(measured.noise / noise - 1) < 0.02
    assert error < 0.02
