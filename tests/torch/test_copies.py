"""Copies of networks: complex numbers, batches of tokenizers, and networks that draw random numbers."""

import pytest
import torch
from torch import nn

from tests.torch.dropping import DROPS, Stream, rows
from tests.torch.zoo import build, square
from undertow.torch import census
from undertow.torch._copies import (
    OnePrecision,
    cast_model,
    forward,
    loss_bypasses_outputs,
    model_copy,
    observe_random_numbers,
    seed_all,
)

pytestmark = pytest.mark.torch


class WithComplex(nn.Module):
    """A real network that rotates its inputs by complex numbers."""

    def __init__(self, kind):
        super().__init__()
        turn = torch.polar(torch.ones(4), torch.arange(4.0))
        if kind == "buffer":
            self.register_buffer("turn", turn)
        else:
            self.turn = nn.Parameter(turn, requires_grad=kind == "trains")
        self.into, self.out = nn.Linear(8, 7), nn.Linear(7, 3)

    def forward(self, x):
        turned = torch.view_as_real(torch.view_as_complex(x.reshape(len(x), 4, 2)) * self.turn).flatten(1)
        return self.out(torch.relu(self.into(turned) - self.into(x)))


@pytest.mark.filterwarnings("error:Casting complex")
def test_complex_parameters_raise_unless_frozen():
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    with pytest.raises(ValueError, match=r"the parameter turn is complex \(complex64\)"):
        census(WithComplex("trains"), x, square)
    for kind in ("buffer", "frozen"):
        model = WithComplex(kind)
        dtypes = []
        handle = model.register_forward_hook(lambda m, args, out, dtypes=dtypes: dtypes.append(m.turn.dtype))
        (symmetry,) = census(model, x, square)
        handle.remove()
        # a cast to real numbers would not change the symmetries, so that the types are recorded
        assert set(dtypes) == {torch.complex128, torch.complex64}
        assert symmetry.name == "rescaling, 7 scales: into.weight[i, :] against out.weight[:, i]"
        assert model.turn.dtype == torch.complex64


def test_the_census_of_a_network_with_complex_inputs_and_outputs():
    torch.manual_seed(0)

    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(5, 7), nn.Linear(7, 3)

        def forward(self, x):
            return torch.fft.fft(self.out(torch.relu(self.into(x.imag))))

    symmetries = census(
        Spectrum(), torch.randn(6, 5, dtype=torch.complex64), lambda net, x: net(x).abs().square().mean()
    )
    assert rows(symmetries) == ["rescaling, 7 scales: into.weight[i, :], into.bias against out.weight[:, i]"]


@pytest.mark.parametrize("name", [*DROPS, "none"])
def test_networks_that_draw_random_numbers_are_detected(name):
    drop = DROPS[name]() if name in DROPS else nn.Dropout(0.0)
    for dtype in (torch.float32, torch.float64):
        model, batch = Stream(drop).to(dtype), torch.randn(6, 5, dtype=dtype)
        observed, drawn = observe_random_numbers(model, square)
        with OnePrecision(dtype):
            for _ in range(2):
                forward(model, batch, observed)
        assert drawn == [name != "none"]


def test_a_batch_of_a_tokenizer_is_read_by_attributes():
    import transformers

    model, batch, _ = build("LoRA")
    encoding = transformers.BatchEncoding(batch)
    symmetries = census(model, encoding, lambda net, b: net(input_ids=b.input_ids, labels=b.labels).loss)
    assert len(symmetries) == 4


def test_a_copy_in_another_precision_keeps_ties_and_shares_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for dtype in (torch.float64, torch.float32):
        twin = model_copy(model, dtype)
        assert twin[2].weight is twin[0].weight
        assert [p.requires_grad for p in twin.parameters()] == [p.requires_grad for p in model.parameters()]
        assert {p.dtype for p in twin.parameters()} == {twin[1].running_mean.dtype} == {dtype}
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        twin(torch.randn(6, 4, dtype=dtype))
        again = cast_model(twin, model, torch.float32)
        assert again[2].weight is again[0].weight
        torch.testing.assert_close(again[1].running_mean, before["1.running_mean"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_seeds_are_not_queued_for_devices_that_are_not_used():
    """`torch.manual_seed` keeps a call with its traceback for every device that is not initialised."""
    queued = len(torch.cuda._queued_calls)
    seed_all(3)
    assert torch.initial_seed() == 3
    assert torch.cuda.is_initialized() or len(torch.cuda._queued_calls) == queued


class WithParts(nn.Module):
    """A model that returns the states of its parts beside its outputs, as CLIP does."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.one(x)
        return {"embeddings": self.two(hidden), "text_model_output": {"last_hidden_state": hidden}}


def test_states_of_parts_of_a_model_are_no_outputs():
    torch.manual_seed(0)
    loss = lambda model, x: model(x)["embeddings"].square().mean()
    _, outputs = forward(WithParts(), torch.randn(5, 3), loss)
    assert outputs.numel() == 10
    (symmetry,) = census(WithParts(), torch.randn(5, 3), loss)
    assert symmetry.block == 4


def test_new_tensors_are_in_double_precision():
    with OnePrecision():
        least = torch.full((), torch.finfo(torch.float64).min)
        assert least.dtype == torch.float64
    assert torch.zeros(()).dtype == torch.float32


def test_casts_inside_a_model_are_replaced_in_both_precisions():
    x = torch.ones(2, 2)
    for dtype in (torch.float32, torch.float64):
        with OnePrecision(dtype):
            own = x.to(dtype)
            made = (own.half(), own.double(), own.to(torch.bfloat16), torch.softmax(own, 0, dtype=torch.float64))
            assert {tensor.dtype for tensor in (*made, torch.zeros(()))} == {dtype}
            assert own.cfloat().dtype == dtype.to_complex()


def test_a_copy_changes_its_precision_in_the_memory_it_has():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    twin = model_copy(model, torch.float64)
    places = [p.data_ptr() for p in twin.parameters()]
    for dtype in (torch.float32, torch.float64):
        for p in twin.parameters():
            p.data.fill_(7.0)
        cast_model(twin, model, dtype)
        assert [p.data_ptr() for p in twin.parameters()] == places
        for own, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(other, own.to(other.dtype), rtol=0, atol=0)
        assert {p.dtype for p in twin.parameters()} == {dtype} == {twin[1].running_mean.dtype}
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_loss_that_reaches_parameters_only_by_the_outputs_needs_no_gradient(monkeypatch):
    model, batch = nn.Linear(4, 3), torch.randn(5, 4)
    monkeypatch.setattr("undertow.torch._copies.visit_gradients", lambda *args: pytest.fail("a gradient"))
    assert not loss_bypasses_outputs(model, batch, lambda net, x: net(x).square().mean(), 0, 1.0)
    monkeypatch.undo()
    penalty = lambda net, x: net(x).square().mean() + net.weight.square().sum()
    assert loss_bypasses_outputs(model, batch, penalty, 0, 1.0)
    harmless = lambda net, x: net(x).square().mean() + 0 * net.weight.square().sum()
    assert not loss_bypasses_outputs(model, batch, harmless, 0, 1.0)
