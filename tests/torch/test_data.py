"""Batches by environment and pooled batches, resumed samplers, and the laws of label noise."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from undertow.torch import EnvironmentBatchSampler, LabelNoise, PooledBatchSampler

pytestmark = pytest.mark.torch

GROUPS = np.repeat([0, 1, 2], [7, 20, 13])[np.random.default_rng(0).permutation(40)]
BOTH = pytest.mark.parametrize("kind", [EnvironmentBatchSampler, PooledBatchSampler])


def environments(batch):
    return set(GROUPS[batch].tolist())


@pytest.mark.parametrize("weights", [None, [0.2, 0.3, 0.5]])
def test_every_batch_has_one_environment(weights):
    sampler = EnvironmentBatchSampler(GROUPS, 4, weights=weights)
    for _ in range(3):
        batches = list(sampler)
        assert len(batches) == len(sampler) == 2 + 5 + 4
        assert all(len(environments(batch)) == 1 for batch in batches)


def test_the_pooled_sampler_has_the_same_batch_sizes_and_mixes_environments():
    sampler = EnvironmentBatchSampler(GROUPS, 4, seed=3)
    twin = sampler.pooled()
    ours, theirs = list(sampler), list(twin)
    assert sorted(map(len, ours)) == sorted(map(len, theirs))
    assert np.mean([len(environments(batch)) for batch in theirs]) > 1.5
    assert twin.seed == 3


@BOTH
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    batch_size=st.integers(1, 6),
    seed=st.integers(0, 99),
    shuffle=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_every_sample_occurs_once_per_epoch(kind, sizes, batch_size, seed, shuffle):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    sampler = kind(groups, batch_size, seed=seed, shuffle=shuffle)
    for _ in range(2):
        batches = list(sampler)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(groups)))
        assert len(batches) == len(sampler)
        assert max(map(len, batches)) <= batch_size


@BOTH
def test_epochs_differ_and_equal_seeds_give_equal_batches(kind):
    one, two = kind(GROUPS, 4, seed=1), kind(GROUPS, 4, seed=1)
    first, second = list(one), list(one)
    assert first != second
    assert [list(two), list(two)] == [first, second]
    assert list(kind(GROUPS, 4, seed=2)) != first


@BOTH
def test_drop_last_keeps_full_batches_only(kind):
    sampler = kind(GROUPS, 4, drop_last=True)
    assert [len(batch) for batch in sampler] == [4] * (1 + 5 + 3)


@BOTH
def test_environments_are_drawn_with_the_given_weights(kind):
    """The shares of samples are within 4 standard errors; one draw per batch makes fewer draws."""
    weights = np.array([0.6, 0.3, 0.1])
    sampler = kind(GROUPS, 4, weights=weights)
    epochs = 200
    drawn = GROUPS[np.array([batch for _ in range(epochs) for batch in sampler])]
    shares = np.bincount(drawn.reshape(-1)) / drawn.size
    independent = drawn.size if kind is PooledBatchSampler else len(drawn)
    error = np.sqrt(weights * (1 - weights) / independent)
    assert np.all(np.abs(shares - weights) < 4 * error)
    assert np.any(np.abs(shares - np.bincount(GROUPS) / 40) > 8 * error)


def test_a_weighted_environment_uses_all_samples_before_it_repeats_one():
    sampler = EnvironmentBatchSampler(GROUPS, 4, weights=[0.8, 0.1, 0.1])
    drawn = np.concatenate([b for b in sampler if environments(b) == {0}])
    for start in range(0, len(drawn) - 6, 7):
        assert len(set(drawn[start : start + 7])) == 7


@BOTH
@pytest.mark.parametrize("weights", [None, [0.2, 0.3, 0.5]])
@pytest.mark.parametrize("left", [0, 1, 5, 11])
def test_a_sampler_resumes_in_the_middle_of_an_epoch(kind, weights, left):
    build = lambda: kind(GROUPS, 4, weights=weights, seed=7)
    sampler = build()
    list(sampler)
    running = iter(sampler)
    for _ in range(left):
        next(running)
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = [*running, *sampler, *sampler]
    resumed = build()
    resumed.load_state_dict(state)
    assert [*resumed, *resumed, *([] if left == 11 else resumed)][: len(expected)] == expected


@BOTH
def test_an_interrupted_epoch_is_resumed_only_from_a_state(kind):
    sampler = kind(GROUPS, 4)
    for _ in sampler:
        break
    assert list(sampler) == kind(GROUPS, 4).batches(1)


class Samples(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index


SLOW = pytest.mark.slow
LOADERS = [(EnvironmentBatchSampler, 0), (PooledBatchSampler, 0), pytest.param(EnvironmentBatchSampler, 2, marks=SLOW)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(("kind", "workers"), LOADERS)
def test_samplers_in_a_data_loader(kind, workers):
    sampler = kind(GROUPS, 4, seed=5)
    # spawned, because a process with JAX must not fork
    options = {"num_workers": workers, "multiprocessing_context": "spawn"} if workers else {}
    loader = DataLoader(Samples(), batch_sampler=sampler, **options)
    assert len(loader) == 11
    batches = []
    for done, batch in enumerate(loader, start=1):
        batches.append(batch.tolist())
        if done == 4:
            state = sampler.state_dict(done=4)
    assert batches == kind(GROUPS, 4, seed=5).batches(0)
    resumed = kind(GROUPS, 4, seed=5)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in DataLoader(Samples(), batch_sampler=resumed, **options)] == batches[4:]


def left_of(kind, state):
    """Return the remaining batches of the epoch of a state, and those of the next epoch."""
    resumed = kind(GROUPS, 4, seed=5)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    return [list(resumed), list(resumed)]


@BOTH
def test_done_counts_the_batches_of_the_current_epoch(kind):
    """The sampler may finish an epoch before the training loop does."""
    sampler = kind(GROUPS, 4, seed=5)
    first, second, third = (sampler.batches(epoch) for epoch in range(3))
    for requested in (6, 11):  # a loader without workers, and one that requested all batches
        ahead = kind(GROUPS, 4, seed=5)
        running = iter(ahead)
        for _ in range(requested):
            next(running)
        if requested == 11:
            assert next(running, None) is None
        assert left_of(kind, ahead.state_dict(done=6)) == [first[6:], second]
    list(sampler)
    assert left_of(kind, sampler.state_dict(done=11)) == left_of(kind, sampler.state_dict()) == [second, third]
    with pytest.raises(ValueError, match="between epochs leave `done` out"):
        sampler.state_dict(done=0)
    assert list(sampler) == second
    resumed = kind(GROUPS, 4, seed=5)  # resumed in the middle, and interrupted again before the end
    resumed.load_state_dict(sampler.state_dict(done=3))
    assert resumed.state_dict(done=3) == resumed.state_dict() == sampler.state_dict(done=3)
    assert list(resumed) == second[3:]
    assert left_of(kind, resumed.state_dict(done=8)) == [second[8:], third]
    assert list(resumed) == third


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_sampler_resumes_with_workers_that_prefetch():
    """The sampler has finished epoch 0 while two of its batches are still to be used."""
    sampler = EnvironmentBatchSampler(GROUPS, 4, seed=5)
    # spawned, because a process with JAX must not fork; the worker need not import this file for a range
    loader = DataLoader(range(40), batch_sampler=sampler, num_workers=1, multiprocessing_context="spawn")
    states = [sampler.state_dict(done=done) for done, _ in enumerate(loader, start=1)]
    assert sampler.epoch == 1
    first, second = sampler.batches(0), sampler.batches(1)
    for done in (5, 9, 10):
        assert left_of(EnvironmentBatchSampler, states[done - 1]) == [first[done:], second]
    assert left_of(EnvironmentBatchSampler, states[10])[0] == second


def test_groups_may_be_any_kind_of_array():
    expected = EnvironmentBatchSampler(GROUPS, 4).batches(0)
    for groups in (GROUPS.tolist(), torch.as_tensor(GROUPS), GROUPS.astype(np.uint8)):
        assert EnvironmentBatchSampler(groups, 4).batches(0) == expected


@BOTH
def test_invalid_input_raises(kind, as_a_user):
    cases = (
        ({"groups": [0.0, 1.0], "batch_size": 1}, TypeError, "whole numbers 0..k-1"),
        ({"groups": ["a", "b"], "batch_size": 1}, TypeError, "return_inverse"),
        ({"groups": [0, 2], "batch_size": 1}, ValueError, "group 1 has no data"),
        ({"groups": [0, -1], "batch_size": 1}, ValueError, "holds -1"),
        ({"groups": np.ma.array([0, 1], mask=[0, 1]), "batch_size": 1}, ValueError, "masked labels"),
        ({"groups": [], "batch_size": 1}, ValueError, "environment of every sample"),
        ({"groups": [[0, 1]], "batch_size": 1}, ValueError, "shape"),
        ({"groups": [0, 1], "batch_size": 0}, ValueError, "batch_size=0"),
        ({"groups": [0, 1], "batch_size": 1.5}, TypeError, "batch_size=1.5"),
        ({"groups": [0, 1], "batch_size": 1, "weights": [1.0]}, ValueError, "give one each"),
        ({"groups": [0, 1], "batch_size": 1, "weights": [0.5, 0.6]}, ValueError, "sum to 1"),
        (
            {"groups": [0, 1], "batch_size": 1, "weights": [0.5, 0.5], "shuffle": False},
            ValueError,
            "leave shuffle=True",
        ),
        ({"groups": [0, 1, 1], "batch_size": 2, "drop_last": True}, ValueError, "never be used"),
        (
            {"groups": [0, 1, 1], "batch_size": 3, "drop_last": True, "weights": [0.5, 0.5]},
            ValueError,
            "no environment has 3 samples",
        ),
        ({"groups": [0, 1], "batch_size": 1, "seed": -1}, ValueError, "seed=-1"),
    )
    for arguments, error, words in cases:
        with pytest.raises(error, match=words):
            kind(**arguments)
    sampler = kind(GROUPS, 4)
    with pytest.raises(ValueError, match="`done` must be at most 11"):
        sampler.state_dict(done=12)
    for other in (kind(GROUPS, 5), kind(GROUPS[::-1], 4), kind(GROUPS, 4, seed=1)):
        with pytest.raises(ValueError, match="build it as it was"):
            other.load_state_dict(sampler.state_dict())
    twin = PooledBatchSampler if kind is EnvironmentBatchSampler else EnvironmentBatchSampler
    with pytest.raises(ValueError, match="sampler"):
        twin(GROUPS, 4).load_state_dict(sampler.state_dict())


def test_moments_of_sign_and_gaussian_noise():
    """The mean is 0, the variance strength^2, and the fourth moments are 1 and 3 strength^4, for every entry."""
    targets = torch.linspace(-1, 1, 40_000, dtype=torch.float64).reshape(-1, 2)
    for kind, fourth in (("sign", 1.0), ("gaussian", 3.0)):
        noise = LabelNoise(0.5, kind)
        drawn = (noise(targets) - targets) / 0.5
        count = drawn.numel()
        assert abs(drawn.mean()) < 4 / count**0.5
        assert abs(drawn.square().mean() - 1) < 4 * ((fourth - 1) / count) ** 0.5 + 1e-9
        assert drawn.pow(4).mean() == pytest.approx(fourth, rel=0.1)
        assert abs((drawn[:, 0] * drawn[:, 1]).mean()) < 4 / (count / 2) ** 0.5
        assert not torch.equal(noise(targets), noise(targets))


def test_flips_have_the_stated_probability():
    targets = torch.arange(30_000) % 5
    original = targets.clone()
    flipped = LabelNoise(0.3, "flip", classes=5)(targets)
    assert torch.equal(targets, original)
    assert flipped.dtype == targets.dtype
    share = (flipped != targets).double().mean()
    assert abs(share - 0.3) < 4 * (0.21 / 30_000) ** 0.5
    by = ((flipped - targets) % 5)[flipped != targets]
    counts = torch.bincount(by, minlength=5)[1:].double()
    assert (counts / counts.sum() - 0.25).abs().max() < 4 * (0.1875 / counts.sum()) ** 0.5
    assert torch.equal(LabelNoise(0.0, "flip", classes=5)(targets), targets)


@pytest.mark.parametrize(("dtype", "classes"), [(torch.int8, 100), (torch.uint8, 200), (torch.int16, 100)])
def test_flips_of_short_integers_do_not_overflow(dtype, classes):
    """At probability 1 every other class is reached; 99 + 99 overflows an int8."""
    targets = torch.full((5000,), classes - 1, dtype=dtype)
    flipped = LabelNoise(1.0, "flip", classes=classes)(targets)
    assert flipped.dtype == dtype
    assert sorted(flipped.unique().tolist()) == list(range(classes - 1))


def test_label_noise_resumes_from_its_state():
    noise = LabelNoise(1.0, "gaussian", seed=3)
    noise(torch.zeros(5))
    state = copy.deepcopy(noise.state_dict())
    expected = noise(torch.zeros(7))
    resumed = LabelNoise(1.0, "gaussian", seed=3)
    resumed.load_state_dict(state)
    assert torch.equal(resumed(torch.zeros(7)), expected)


class Noisy(TensorDataset):
    noise = LabelNoise(1.0, "gaussian")

    def __getitem__(self, index):
        return self.noise(super().__getitem__(index)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_draw_their_own_noise():
    loader = DataLoader(Noisy(torch.zeros(8)), batch_size=2, num_workers=2, multiprocessing_context="spawn")
    assert len(torch.cat([*loader]).unique()) == 8


def test_invalid_label_noise_raises(as_a_user):
    cases = (
        (lambda: LabelNoise(-1.0), ValueError, "strength=-1"),
        (lambda: LabelNoise("much"), TypeError, "must be a number"),
        (lambda: LabelNoise(1.0, "uniform"), ValueError, "kind='uniform'"),
        (lambda: LabelNoise(1.5, "flip", classes=3), ValueError, "at most 1"),
        (lambda: LabelNoise(0.5, "flip"), ValueError, "number of classes"),
        (lambda: LabelNoise(0.5, classes=3), ValueError, "number of classes"),
        (lambda: LabelNoise(0.5, "flip", classes=1), ValueError, "`classes` must be at least 2"),
        (lambda: LabelNoise(0.5)(torch.arange(3)), TypeError, "for regression"),
        (lambda: LabelNoise(0.5, "flip", classes=3)(torch.zeros(3)), TypeError, "integers of classes"),
        (lambda: LabelNoise(0.5, "flip", classes=3)(torch.tensor([3])), ValueError, "classes are 0..2"),
        (
            lambda: LabelNoise(0.5, "flip", classes=129)(torch.zeros(3, dtype=torch.int8)),
            ValueError,
            "cannot represent the last class",
        ),
    )
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()
