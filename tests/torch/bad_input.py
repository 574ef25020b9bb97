"""Bad arguments of `undertow.torch`."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tests.bad_input.cases import Bad, Case, choice, counts, flags, functions, numbers, refused
from undertow.torch import (
    Census,
    EnvironmentBatchSampler,
    LabelNoise,
    NoiseMonitor,
    PooledBatchSampler,
    analyze,
    census,
    check_scaling_map,
    equilibrate,
    load_scaling_map,
    narrow_twin,
)

BATCH = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
OUTSIDE = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
LOADER = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(BATCH), batch_size=2)
RANDOM = np.random.default_rng(0)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def square(model, x):
    return model(x).square().mean()


@functools.cache
def symmetries() -> Census:
    return census(net(), BATCH, square)


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) * float(RANDOM.normal())


def sparse_model() -> nn.Module:
    model = net()
    model[0].weight = nn.Parameter(model[0].weight.detach().to_sparse())
    return model


def without_gradient(model, x):
    with torch.no_grad():
        return square(model, x)


NOISY = nn.Sequential(Noisy(4, 3), nn.ReLU(), nn.Linear(3, 2))
A_MODULE = "give a `torch.nn.Module`"
MODELS = [
    Bad(None, "None", A_MODULE),
    Bad("net", "'net'", A_MODULE),
    Bad(nn.Linear, "Linear", A_MODULE),
    Bad(net().state_dict(), "OrderedDict", A_MODULE),
    Bad(lambda x: x, "a function", A_MODULE),
    Bad(list(net().parameters()), "a list", A_MODULE),
    Bad(sparse_model(), "0.weight is sparse", "`.to_dense()`"),
]
A_BATCH, TENSORS = "`next(iter(loader))`", "`torch.as_tensor(array)`"
BATCHES = [
    Bad(LOADER, "DataLoader", A_BATCH),
    Bad(LOADER.dataset, "TensorDataset", A_BATCH),
    Bad(iter([BATCH]), "list_iterator", A_BATCH),
    Bad(BATCH.numpy(), "(6, 4)", TENSORS),
    Bad([BATCH.numpy()], "a", TENSORS),
    Bad({"x": BATCH.numpy()}, "x", TENSORS),
    Bad("text", "'text'", "give tensors"),
]
LOSSES = [
    *functions("loss(model, batch)"),
    Bad(nn.MSELoss(), "MSELoss", "`loss(model, batch)`"),
    Bad(lambda model, x: square(model, x).detach(), "without a gradient", "leave out `.detach()`"),
    Bad(without_gradient, "without a gradient", "`torch.no_grad()`"),
    Bad(lambda model, x: model(x).square().mean() * torch.inf, "inf", "check the batch"),
    Bad(lambda model, x: square(model, x) * torch.nan, "nan", "check the batch"),
    Bad(lambda model, x: model(OUTSIDE).square().mean(), "double precision", "through `batch`"),
    Bad(lambda model, x: square(model, x) * float(RANDOM.normal()), "with the same seeds", "must be deterministic"),
]
RESULTS = [
    Bad(lambda model, x: model(x), "(6, 2)", "return one number"),
    Bad(lambda model, x: square(model, x).item(), "a float", "return one number"),
    Bad(lambda model, x: None, "None", "return one number"),
    Bad(lambda model, x: "text", "a str", "return one number"),
    Bad(lambda model, x: x.sum(), "did not call", "call `model(...)` inside it"),
]
LISTS = [
    Bad(None, "None", "a list of batches"),
    Bad(3, "3", "a list of batches"),
    Bad(BATCH, "(6, 4)", "a list of batches"),
    Bad({"x": BATCH}, "a dict", "a list of batches"),
    Bad("text", "'text'", "a list of batches"),
]
SEEDS = [bad for bad in counts(least=0) if bad.shown != "1000000000000"]
SETTINGS = {"step_size": numbers(zero=False), "weight_decay": numbers(), "seed": SEEDS}
LABELS = [
    Bad([], "[]", "of every sample"),
    Bad("abc", "'abc'", "of every sample"),
    Bad(None, "None", "of every sample"),
    Bad(3, "3", "of every sample"),
    Bad([0.0, 1.0], "float64", "whole numbers 0..k-1"),
    Bad(torch.tensor([0.0, 1.0]), "float32", "whole numbers 0..k-1"),
    Bad([0, -1], "-1", "labels are 0..k-1"),
    Bad([0, 2], "group 1", "without gaps"),
    Bad([[0, 1]], "(1, 2)", "give one label each"),
    Bad([0, None], "object", "whole numbers 0..k-1"),
]
SHARES = [
    Bad([1.0], "(1,)", "give one each"),
    Bad([0.5, 0.6], "[0.5, 0.6]", "divide by the sum"),
    Bad([1.0, 0.0], "[1.0, 0.0]", "leave out an environment"),
    Bad(["a", "b"], "<U1", "give real numbers"),
    Bad(0.5, "0.5", "give one each"),
]


def sampler(kind=EnvironmentBatchSampler, **given):
    return kind(**{"groups": [0, 0, 1, 1, 1], "batch_size": 2} | given)


def resumed(state):
    return sampler().load_state_dict(state if not isinstance(state, dict) else sampler().state_dict() | state)


def without(name: str):
    state = sampler().state_dict()
    del state[name]
    return sampler().load_state_dict(state)


STATES = [
    Bad(None, "None", "that of `state_dict()`"),
    Bad("text", "'text'", "that of `state_dict()`"),
    Bad([1], "[1]", "that of `state_dict()`"),
    Bad({"seed": 3}, "seed", "as it was built"),
    Bad({"batch_size": 9}, "batch_size", "as it was built"),
    Bad({"epoch": -1}, "-1", "at least 0"),
    Bad({"epoch": "a"}, "'a'", "a whole number"),
    Bad({"position": 99}, "99", "at most"),
    Bad({"position": 1.5}, "1.5", "a whole number"),
    Bad({"position": None}, "None", "a whole number"),
]
TARGETS = [
    Bad([1.0], "[1.0]", "give a tensor"),
    Bad(np.ones(2), "(2,)", "give a tensor"),
    Bad(None, "None", "give a tensor"),
    Bad(torch.ones(2, dtype=torch.int64), "int64", "for classes"),
]


def written(text: str, name: str = "map.toml"):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        return load_scaling_map(path)


def move(**given):
    return equilibrate(
        **{"model": net(), "batches": [BATCH, BATCH], "loss": square, "census": symmetries(), "step_size": 0.1} | given
    )


def look(**given):
    return analyze(**{"model": net(), "batches": [BATCH, BATCH], "loss": square} | given)


def count(**given):
    return census(**{"model": net(), "batch": BATCH, "loss": square} | given)


def monitor(**given):
    NoiseMonitor(**{"model": net()} | given).close()


NOT_A_CENSUS = [Bad(3, "3", "give `census(model, ...)`"), Bad("census", "'census'", "give `census(model, ...)`")]
BY_CENSUS = [bad for bad in LOSSES if "double precision" not in bad.shown]
CASES: list[Case] = [
    *refused(
        "census",
        count,
        {"model": MODELS, "batch": BATCHES, "loss": LOSSES, "seed": SEEDS, "count": flags(optional=True)},
    ),
    *refused("loss(model, batch)", count, {"loss": RESULTS}),
    *refused("census", count, {"model": [Bad(NOISY, "with the same seeds", "must be deterministic")]}),
    *refused(
        "equilibrate",
        move,
        {
            "model": MODELS,
            "batches": [
                *LISTS,
                Bad([BATCH.numpy()] * 2, "(6, 4)", TENSORS),
                Bad([BATCH], "1 batches", "give at least 2"),
            ],
            "loss": BY_CENSUS,
            "census": [*NOT_A_CENSUS, Bad(None, "None", "give `census(model, ...)`")],
            **SETTINGS,
            "optimiser": choice("sgd"),
            "dry_run": flags(),
            "curvature_batches": counts(least=0),
        },
    ),
    *refused(
        "analyze",
        look,
        {
            "model": MODELS,
            "batches": [Bad(b.value, b.shown, "a list of batches") for b in LISTS],
            "loss": functions("loss(model, batch)"),
            **SETTINGS,
            "batch_size": counts(),
        },
    ),
    *refused(
        "NoiseMonitor",
        monitor,
        {
            "model": MODELS,
            "census": NOT_A_CENSUS,
            "every": counts(),
            "keep": counts(),
            "window": counts(),
            "batch_axis": [
                Bad(2, "2", "at most 1"),
                Bad(-1, "-1", "at least 0"),
                Bad("0", "'0'", "a whole"),
                Bad(None, "None", "a whole"),
            ],
            "on_error": choice("raise"),
            "distributed": flags(optional=True),
            "writer": [Bad(3, "3", "a SummaryWriter"), Bad([], "[]", "a SummaryWriter")],
        },
    ),
    *(
        case
        for kind in (EnvironmentBatchSampler, PooledBatchSampler)
        for case in refused(
            kind.__name__,
            functools.partial(sampler, kind),
            {
                "groups": LABELS,
                "batch_size": counts(),
                "weights": SHARES,
                "shuffle": flags(),
                "drop_last": flags(),
                "seed": SEEDS,
            },
        )
    ),
    *refused("load_state_dict", resumed, {"state": STATES}),
    *(
        Case(
            f"load_state_dict without {name}",
            lambda name=name: without(name),
            "`load_state_dict",
            "state",
            name,
            "state",
        )
        for name in ("epoch", "position", "seed", "groups")
    ),
    *refused(
        "state_dict",
        lambda done: sampler().state_dict(done),
        {
            "done": [
                Bad(99, "99", "at most"),
                Bad(-1, "-1", "at least 0"),
                Bad("a", "'a'", "a whole"),
                Bad(1.5, "1.5", "a whole"),
            ]
        },
    ),
    *refused("LabelNoise", LabelNoise, {"strength": numbers(), "kind": choice("sign")}),
    *refused(
        "LabelNoise",
        lambda classes: LabelNoise(0.5, "flip", classes=classes),
        {"classes": counts(least=2, optional=True)},
    ),
    *refused(
        "LabelNoise",
        lambda strength: LabelNoise(strength, "flip", classes=3),
        {"strength": [Bad(1.5, "1.5", "at most 1")]},
    ),
    *refused("LabelNoise", lambda targets: LabelNoise()(targets), {"targets": TARGETS}),
    *refused(
        "load_state_dict",
        lambda state: LabelNoise().load_state_dict(state),
        {
            "state": [
                Bad(None, "None", "`state_dict()`"),
                Bad({}, "{}", "`state_dict()`"),
                Bad({"generator": 3}, "3", "`state_dict()`"),
            ]
        },
    ),
    *refused(
        "narrow_twin",
        narrow_twin,
        {
            "config": [
                Bad(None, "None", "a configuration"),
                Bad("gpt2", "'gpt2'", "a configuration"),
                Bad({}, "{}", "a configuration"),
            ]
        },
    ),
    *(
        Case(
            f"load_scaling_map {text!r}",
            lambda text=text, name=name: written(text, name),
            "`load_scaling_map(",
            "",
            shown,
            advice,
        )
        for text, name, shown, advice in [
            ("= 3", "map.toml", "TOML", "not valid"),
            ("{", "map.json", "JSON", "not valid"),
            ("a = 3", "map.toml", "['a']", "`mappings`"),
            ("3", "map.yaml", ".yaml", "give a .toml or .json file"),
        ]
    ),
    *refused(
        "check_scaling_map",
        lambda entries: check_scaling_map(symmetries(), entries),
        {"entries": [Bad([], "empty", "at least one source"), Bad(None, "empty", "at least one source")]},
    ),
]
