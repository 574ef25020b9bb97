"""Batch samplers by environment, their pooled counterpart, and label noise, for training in PyTorch.

The samplers are for `DataLoader(batch_sampler=...)`. The batches of an epoch are a function of the seed and the number
of the epoch alone, so that a resumed run gets the same batches as an uninterrupted one.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from typing import Literal, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Sampler, get_worker_info

from undertow._arrays import group_labels, group_shares
from undertow._validate import as_float, flag, instance, kind_of, one_of, positive_integer, quote, shown

__all__ = ["AbstractBatchSampler", "EnvironmentBatchSampler", "LabelNoise", "PooledBatchSampler"]


class SamplerConfiguration(TypedDict):
    """The arguments of a sampler, which the state it resumes from must repeat."""

    sampler: str
    batch_size: int
    seed: int
    groups: str
    """A hash of the environments of all samples."""
    weights: list[float] | None
    shuffle: bool
    drop_last: bool


class SamplerState(SamplerConfiguration):
    """The state of a sampler between two batches."""

    epoch: int
    position: int


class AbstractBatchSampler(Sampler, ABC):
    """Base class of the samplers: epochs, shuffling and the state to resume from."""

    def __init__(
        self,
        groups: Tensor | ArrayLike,
        batch_size: int,
        *,
        weights: ArrayLike | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ):
        name = type(self).__name__
        self.batch_size = positive_integer(name, "batch_size", batch_size)
        self.groups, self.sizes = _labels(name, groups)
        self.weights = None if weights is None else group_shares(name, weights, len(self.sizes))
        self.shuffle, self.drop_last = flag(name, "shuffle", shuffle), flag(name, "drop_last", drop_last)
        self.seed = positive_integer(name, "seed", seed, least=0, most=2**62)
        if weights is not None and not shuffle:
            raise ValueError(
                f"{quote(name, weights='...', shuffle=False)}: with weights the batches are drawn at random; "
                "leave shuffle=True."
            )
        small = np.flatnonzero(self.sizes < self.batch_size)
        if drop_last and weights is None and small.size:
            raise ValueError(
                f"{quote(name, batch_size=self.batch_size, drop_last=True)}: environment {small[0]} has only "
                f"{self.sizes[small[0]]} samples and would never be used; use smaller batches or drop_last=False."
            )
        if not len(self):
            raise ValueError(
                f"{quote(name, batch_size=self.batch_size, weights='...', drop_last=True)}: no environment has "
                f"{self.batch_size} samples, so that an epoch has no batch; use smaller batches or drop_last=False."
            )
        self._members = [np.flatnonzero(self.groups == e) for e in range(len(self.sizes))]
        self.epoch = 0
        """The epoch that is running, or starts next."""
        self._started_epoch = 0
        """The epoch that was started last; the workers of a loader finish it before the loop does."""
        self._position = 0
        self._resumed = False

    def _lengths(self, environment: int) -> list[int]:
        """Return the sizes of the batches of one environment in an epoch."""
        full, rest = divmod(int(self.sizes[environment]), self.batch_size)
        return [self.batch_size] * full + ([rest] if rest and not self.drop_last else [])

    def __len__(self) -> int:
        """Return the number of batches in an epoch, in which every environment is used up once."""
        return sum(len(self._lengths(e)) for e in range(len(self.sizes)))

    @abstractmethod
    def batches(self, epoch: int) -> list[list[int]]:
        """Return all batches of an epoch, as indices of samples."""

    def _generator(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch])

    def __iter__(self) -> Iterator[list[int]]:
        if self._position and not self._resumed:  # the last epoch was left before its end
            self.epoch, self._position = self.epoch + 1, 0
        self._resumed, self._started_epoch = False, self.epoch
        for batch in self.batches(self.epoch)[self._position :]:
            self._position += 1
            yield batch
        self.epoch, self._position = self.epoch + 1, 0

    def _configuration(self) -> SamplerConfiguration:
        digest = hashlib.sha256(self.groups.astype(np.int64).tobytes()).hexdigest()[:16]
        weights = None if self.weights is None else self.weights.tolist()
        return {
            "sampler": type(self).__name__, "batch_size": self.batch_size, "seed": self.seed, "groups": digest,
            "weights": weights, "shuffle": self.shuffle, "drop_last": self.drop_last,
        }  # fmt: skip

    def state_dict(self, done: int | None = None) -> SamplerState:
        """Return the state to resume from. `done`: batches of the last epoch that your loop has finished.

        They are counted from the start of the epoch, also in an epoch that was resumed. Without `done` it is the
        number of batches that were requested. A `DataLoader` with workers requests batches ahead, so give `done` there.
        Between epochs leave it out.
        """
        if done is None:
            return {**self._configuration(), "epoch": self.epoch, "position": self._position}
        done = positive_integer("state_dict", "done", done, least=0, most=len(self))
        if done == 0 and self.epoch > self._started_epoch:
            raise ValueError(
                f"`state_dict(done=0)`: all batches of epoch {self._started_epoch} were requested, and it is not known "
                "whether your loop is before or after them; between epochs leave `done` out, else finish a batch first."
            )
        return {**self._configuration(), "epoch": self._started_epoch, "position": done}

    def load_state_dict(self, state: SamplerState) -> None:
        """Resume from a state: the next iteration gives the remaining batches of its epoch."""
        if not isinstance(state, dict):
            raise TypeError(
                f"`load_state_dict(state={shown(state)})`: `state` is {kind_of(state)}; give that of `state_dict()`."
            )
        for key, value in self._configuration().items():
            if key not in state or state.get(key) != value:
                raise ValueError(
                    f"`load_state_dict`: the state has {key} = {state.get(key)!r} and this sampler {value!r}; build it "
                    "as it was built when the state was saved."
                )
        numbers = (("epoch", 2**62), ("position", len(self)))
        for name, _ in numbers:
            if name not in state:
                raise ValueError(f"`load_state_dict(state=...)`: `state` has no {name!r}; give that of `state_dict()`.")
        self.epoch, self._position = (
            positive_integer("load_state_dict", f"state[{name!r}]", state[name], least=0, most=most)
            for name, most in numbers
        )
        if self._position == len(self):
            self.epoch, self._position = self.epoch + 1, 0
        self._resumed, self._started_epoch = True, self.epoch

    def _passes(self, environment: int, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return `count` samples of an environment: passes over all of them, each in a new random order."""
        size = int(self.sizes[environment])
        passes = [generator.permutation(self._members[environment]) for _ in range(math.ceil(count / size))]
        return np.concatenate(passes)[:count] if passes else np.zeros(0, int)


class EnvironmentBatchSampler(AbstractBatchSampler):
    """Batches of one environment each (HeteroSGD), for `DataLoader(batch_sampler=...)`.

    **Arguments:**

    - `groups`: the environment of every sample of the data set, integers 0..k-1.
    - `batch_size`: the last batch of an environment may be smaller; `drop_last` leaves it out.
    - `weights`: None: every sample once per epoch, batches in random order. Otherwise the probability of each
      environment: an epoch has the same number of batches, all full, and the environment of each batch is drawn at
      random. The samples of an environment are used in passes, each in a new random order.
    - `shuffle`: False keeps samples and environments in their order.
    - `seed`: seed of the random order, which differs between epochs.

    `pooled()` returns the counterpart with the same number of batches of the same sizes that mixes the environments.

    >>> from undertow.torch import EnvironmentBatchSampler
    >>> sampler = EnvironmentBatchSampler([0, 1, 0, 1, 1], batch_size=2, shuffle=False)
    >>> print(list(sampler), len(sampler))
    [[0, 2], [1, 3], [4]] 3
    """

    def batches(self, epoch: int) -> list[list[int]]:
        generator = self._generator(epoch)
        if self.weights is not None:
            chosen = generator.choice(len(self.sizes), size=len(self), p=self.weights)
            counts = np.bincount(chosen, minlength=len(self.sizes)) * self.batch_size
            drawn = [
                self._passes(e, int(counts[e]), generator).reshape(-1, self.batch_size) for e in range(len(counts))
            ]
            rows = [iter(rows) for rows in drawn]
            return [next(rows[e]).tolist() for e in chosen]
        batches = []
        for environment, members in enumerate(self._members):
            order = generator.permutation(members) if self.shuffle else members
            ends = np.cumsum(self._lengths(environment))
            batches += [part.tolist() for part in np.split(order, ends)[: len(ends)]]
        return [batches[k] for k in generator.permutation(len(batches))] if self.shuffle else batches

    def pooled(self) -> "PooledBatchSampler":
        """Return the sampler with as many batches of the same sizes that mixes the environments."""
        return PooledBatchSampler(
            self.groups, self.batch_size, weights=self.weights, shuffle=self.shuffle, drop_last=self.drop_last,
            seed=self.seed,
        )  # fmt: skip


class PooledBatchSampler(AbstractBatchSampler):
    """Batches that mix the environments, as many and of the same sizes as those of `EnvironmentBatchSampler`.

    The arguments are those of `EnvironmentBatchSampler`. With `weights` the environment of every sample is drawn at
    random. Without `weights` every sample occurs once per epoch (except those that `drop_last` leaves out).

    >>> from undertow.torch import PooledBatchSampler
    >>> sampler = PooledBatchSampler([0, 1, 0, 1, 1], batch_size=2, seed=1)
    >>> print(sorted(map(len, sampler)), sorted(sum(sampler.batches(0), [])))
    [1, 2, 2] [0, 1, 2, 3, 4]
    """

    def batches(self, epoch: int) -> list[list[int]]:
        generator = self._generator(epoch)
        if self.weights is not None:
            chosen = generator.choice(len(self.sizes), size=len(self) * self.batch_size, p=self.weights)
            drawn = np.empty(len(chosen), int)
            for environment in range(len(self.sizes)):
                mine = chosen == environment
                drawn[mine] = self._passes(environment, int(mine.sum()), generator)
            return drawn.reshape(-1, self.batch_size).tolist()
        lengths = np.array([n for e in range(len(self.sizes)) for n in self._lengths(e)])
        order = np.arange(len(self.groups))
        if self.shuffle:
            order, lengths = generator.permutation(order), generator.permutation(lengths)
        ends = np.cumsum(lengths)
        return [part.tolist() for part in np.split(order, ends)[: len(ends)]]


class LabelNoise:
    """Random noise on targets, drawn anew at every call, like `undertow.LabelNoise` in JAX.

    For `kind` "sign" the target becomes y + strength e with e = +-1, for "gaussian" with e ~ N(0, 1); every entry has
    its own e. For "flip" a class becomes another one of `classes` with probability `strength`, all equally likely.
    Call the object on the targets of a batch in the training loop. `seed` is that of the random numbers. Each worker of
    a `DataLoader` draws its own noise, without a state to save.

    >>> import torch
    >>> from undertow.torch import LabelNoise
    >>> noise = LabelNoise(0.5)
    >>> print((noise(torch.zeros(3, 2)).abs() == 0.5).all())
    tensor(True)
    >>> print(LabelNoise(1.0, kind="flip", classes=2)(torch.tensor([0, 1, 1])))
    tensor([1, 0, 0])
    """

    def __init__(
        self,
        strength: float = 1.0,
        kind: Literal["sign", "gaussian", "flip"] = "sign",
        *,
        classes: int | None = None,
        seed: int = 0,
    ):
        one_of("LabelNoise", "kind", kind, ("sign", "gaussian", "flip"))
        strength = as_float("LabelNoise", "strength", strength)
        seed = positive_integer("LabelNoise", "seed", seed, least=0, most=2**62)
        if kind == "flip" and strength > 1:
            raise ValueError(f"{quote('LabelNoise', strength=strength, kind=repr(kind))}: a probability is at most 1.")
        if (kind == "flip") != (classes is not None):
            raise ValueError(
                f"{quote('LabelNoise', kind=repr(kind), classes=classes)}: `kind='flip'` needs the number of "
                "classes, and the other kinds must not have it."
            )
        if classes is not None:
            classes = positive_integer("LabelNoise", "classes", classes, least=2)
        self.strength, self.kind, self.classes, self.seed = float(strength), kind, classes, seed
        self._generator = torch.Generator().manual_seed(seed)
        self._worker: int | None = None

    def _source(self) -> torch.Generator:
        """Return the generator of this process; workers of a `DataLoader` start as copies of one another."""
        worker = get_worker_info()
        if worker is not None and worker.seed != self._worker:
            self._worker = worker.seed
            self._generator = torch.Generator().manual_seed((worker.seed + 2**32 * self.seed) % 2**63)
        return self._generator

    def __call__(self, targets: Tensor) -> Tensor:
        """Return the targets with new noise, in a new tensor."""
        instance("LabelNoise()", "targets", targets, Tensor, "a tensor")
        generator, shape = self._source(), targets.shape
        if self.kind == "flip":
            return self._flipped(targets, generator)
        if not targets.is_floating_point():
            raise TypeError(
                f"`LabelNoise(kind={self.kind!r})`: targets are {targets.dtype}; it is for regression, "
                "`kind='flip'` for classes."
            )
        if self.kind == "gaussian":
            drawn = torch.randn(shape, generator=generator)
        else:
            drawn = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
        return targets + self.strength * drawn.to(targets)

    def _flipped(self, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return classes, of which a random part is replaced by other classes."""
        assert self.classes is not None
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise TypeError(f"`LabelNoise(kind='flip')`: targets are {targets.dtype}; give integers of classes.")
        if torch.iinfo(targets.dtype).max < self.classes - 1:
            raise ValueError(
                f"`LabelNoise(classes={self.classes})`: targets are {targets.dtype}, which cannot represent the last "
                "class; give them as int64."
            )
        wide = targets.to(torch.int64)  # a class plus a shift may overflow a short integer
        if wide.numel() and not 0 <= int(wide.min()) <= int(wide.max()) < self.classes:
            raise ValueError(
                f"`LabelNoise(classes={self.classes})`: targets go from {int(wide.min())} to {int(wide.max())}; "
                f"classes are 0..{self.classes - 1}."
            )
        flipped = torch.rand(targets.shape, generator=generator) < self.strength
        shift = torch.randint(1, self.classes, targets.shape, generator=generator) * flipped
        return ((wide + shift.to(wide)) % self.classes).to(targets.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the random generator."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from a state: the noise continues as in an uninterrupted run."""
        given = state.get("generator") if isinstance(state, dict) else None
        try:
            self._generator.set_state(given)
        except (RuntimeError, TypeError):
            raise TypeError(
                f"`load_state_dict(state={shown(state)})`: `state` is not that of a generator; give that of "
                "`state_dict()`."
            ) from None


def _labels(name: str, groups: Tensor | ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the validated labels, and the number of samples in each environment."""
    labels = groups.numpy(force=True) if isinstance(groups, Tensor) else groups
    samples = len(labels) if isinstance(labels, Sized) else 0
    if not samples or isinstance(labels, str | Mapping):
        raise ValueError(f"{quote(name, groups=shown(groups))}: `groups` must have the environment of every sample.")
    return group_labels(name, labels, samples)
