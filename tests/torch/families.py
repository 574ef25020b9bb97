"""Networks with the kinds of symmetries that the census finds, with batches and a loss, and the cost along an orbit.

The cost is computed from its definition on gradients at the moved point. It uses no moments and no closed form.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.torch.layers import Attention, SquaredReLU
from undertow.torch import Census, Symmetry, census
from undertow.torch._copies import trainable
from undertow.torch.census.axes import move

Task = tuple[nn.Module, list[Any], Callable[[nn.Module, Any], Tensor]]


def regression(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def language(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).loss


class CrossAttention(nn.Module):
    """`nn.MultiheadAttention` whose queries read one norm, and whose keys and values read another."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.two(x[:, :4])
        return self.attention(self.one(x[:, 4:]), memory, memory, need_weights=False)[0].mean(1)


class UNetBlock(nn.Module):
    """A convolution that reads the features of two others side by side."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 5, 3, padding=1)
        self.c, self.d = nn.Conv2d(8, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        u = self.a(x).relu()
        return self.d(self.c(torch.cat([u, self.b(u).relu()], 1)).relu().mean((2, 3)))


class Pooled(nn.Module):
    """The mean over positions of a layer on sequences."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)


class Recurrent(nn.Module):
    """A recurrent network with ReLU: rows and columns of one matrix scale against each other."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.RNN(3, 5, nonlinearity="relu", batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


IDS = {"vocab_size": 11, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = IDS | {
    "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 16, "head_dim": 4,
}  # fmt: skip
MLA = WIDE | {
    "q_lora_rank": 5, "kv_lora_rank": 3, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "v_head_dim": 3,
    "num_key_value_heads": 4, "moe_intermediate_size": 5, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 1, "num_hidden_layers": 2,
}  # fmt: skip
EXPERTS = WIDE | {"num_experts": 3, "moe_intermediate_size": 5, "num_experts_per_tok": 2}
MAMBA = IDS | {
    "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "conv_kernel": 2, "expand": 2, "time_step_rank": 3,
}  # fmt: skip


def transformer(name: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    options = {key: value for key, value in options.items() if name != "DeepseekV3" or key != "head_dim"}
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**options))
    if hasattr(model.config, "_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products have no kernel in double precision
    return model


def adapter() -> nn.Module:
    import peft

    base = transformer("Llama", WIDE)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return model


def words() -> dict[str, Tensor]:
    tokens = torch.randint(3, 11, (3, 6))
    return {"input_ids": tokens, "labels": tokens}


def labelled(*shape: int, out: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return a function that draws samples of a shape, and targets."""
    return lambda: (x := torch.randn(6, *shape), torch.sin(x.flatten(1)[:, :out]) + 0.3 * torch.randn(6, out))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], Callable]] = {
    "relu^2": (
        lambda: nn.Sequential(nn.Linear(4, 6), SquaredReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
        labelled(4, out=2), regression,
    ),
    "two relu^2": (
        lambda: nn.Sequential(nn.Linear(4, 6), SquaredReLU(), nn.Linear(6, 5), SquaredReLU(), nn.Linear(5, 2)),
        labelled(4, out=2), regression,
    ),
    "LeNet": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 2),
        ),
        labelled(1, 7, 7, out=2), regression,
    ),
    "U-Net block": (UNetBlock, labelled(2, 5, 5, out=2), regression),
    "groups": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
        ),
        labelled(2, 7, 7, out=2), regression,
    ),
    "cross-attention": (CrossAttention, labelled(7, 8, out=8), regression),
    "RoPE": (
        lambda: Pooled(Attention(8, 4, 2, 4, layout="separate", rope="half", rotary=4, bias=True)),
        labelled(5, 8, out=8), regression,
    ),
    "RNN": (Recurrent, labelled(4, 3, out=2), regression),
    "Mixtral": (lambda: transformer("Mixtral", WIDE | {"num_local_experts": 3}), words, language),
    "Qwen3-MoE": (lambda: transformer("Qwen3Moe", EXPERTS), words, language),
    "DeepSeek-V3": (lambda: transformer("DeepseekV3", MLA), words, language),
    "Mamba": (lambda: transformer("Mamba", MAMBA), words, language),
    "Llama": (lambda: transformer("Llama", WIDE), words, language),
    "LoRA": (adapter, words, language),
}  # fmt: skip
"""Builders of a model and of a batch, and the loss."""


def task(name: str, count: int = 6) -> Task:
    """Return a model in double precision, batches and a loss."""
    build, draw, loss = FAMILIES[name]
    torch.manual_seed(0)
    model = build().double()
    with torch.no_grad():  # gains and biases start at one and at zero
        for parameter in trainable(model).values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    double = lambda x: x.double() if x.is_floating_point() else x
    batches = [draw() for _ in range(count)]
    batches = [{k: double(v) for k, v in b.items()} if isinstance(b, dict) else tuple(map(double, b)) for b in batches]
    return model, batches, loss


@functools.cache
def known_census(name: str) -> Census:
    """Return the census of a family."""
    model, batches, loss = task(name)
    return census(model, batches[0], loss)


def displaced(
    values: dict[str, Tensor], symmetries: Sequence[Symmetry], amounts: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the parameters moved along all symmetries in turn, with derivatives in the amounts."""
    values = dict(values)
    for symmetry, amount in zip(symmetries, amounts, strict=True):
        transform = amount.exp() if symmetry.block == 1 else torch.linalg.matrix_exp((amount + amount.mT) / 2)
        values |= move(values, symmetry, transform)
    return values


def cost(model: nn.Module, batches: list[Any], loss: Callable, values: dict[str, Tensor], **options: Any) -> Tensor:
    """Return F at these values of the parameters, with derivatives.

    `options`: step_size, weight_decay, optimiser, and under AdamW the second moments of an optimiser, `v`.
    """

    class At(nn.Module):  # the model at other values, which a loss can call
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(model, values, args, kwargs)

    rows = []
    with sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            torch.manual_seed(0)
            value = loss(At(), batch)
            gradients = torch.autograd.grad(value, list(values.values()), create_graph=True, allow_unused=True)
            rows.append(
                [torch.zeros_like(v) if g is None else g for g, v in zip(gradients, values.values(), strict=True)]
            )
    step_size, weight_decay = options["step_size"], options["weight_decay"]
    total = torch.zeros((), dtype=torch.float64)
    for gradients, value in zip(zip(*rows, strict=True), values.values(), strict=True):
        stack = torch.stack(gradients)
        if options["optimiser"] == "sgd":
            total = total + step_size / 4 * stack.var(0).sum() + weight_decay / 2 * value.square().sum()
        else:
            squares = stack.square().mean(0)
            used = squares > 0
            total = total + (squares[used].sqrt() * (step_size / 2 + weight_decay * value[used].square())).sum()
    return total


def slopes(task: Task, symmetries: Sequence[Symmetry], **options: Any) -> tuple[float, list[Tensor]]:
    """Return F and its derivative along every generator."""
    model, batches, loss = task
    values = {name: p.detach() for name, p in trainable(model).items()}
    shape = lambda s: (s.size,) if s.block == 1 else (s.size // s.block, s.block, s.block)
    amounts = [torch.zeros(shape(s), dtype=torch.float64, requires_grad=True) for s in symmetries]
    moved = {name: value.requires_grad_() for name, value in displaced(values, symmetries, amounts).items()}
    total = cost(model, batches, loss, moved, **options)
    return float(total.detach()), list(torch.autograd.grad(total, amounts))
