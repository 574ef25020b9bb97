"""The records of a sweep that go from the driver to its workers and back, and to disk."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from undertow.execution.provenance import Parameter
from undertow.execution.reading import check_fields
from undertow.execution.store import JSONObject

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BlockResult", "BlockTask", "Description", "ExperimentReference", "Plan"]


@dataclass(frozen=True)
class ExperimentReference:
    """An experiment as a worker looks it up."""

    experiment: str | Callable[..., object]
    """A claim, a phase diagram, FILE.py:FUNCTION, or the function itself."""
    digest: str
    """A hash of the user's code: a worker with another version of the file raises an error."""
    scale: str
    in_process: bool
    """Whether the worker is the user's own process, whose JAX settings stay as they are."""


@dataclass(frozen=True)
class DescriptionRequest:
    """The request of the driver for the description of an experiment."""

    reference: ExperimentReference
    seed: int
    first: dict[str, Parameter]
    """The parameters of the first point."""


@dataclass(frozen=True)
class Description:
    """The properties of an experiment that the driver needs to divide the grid into blocks."""

    kinds: dict[str, str]
    """`float` (traced), `int`, `bool` or `str` (static) for every parameter; `any` where the function does not say."""
    needed: tuple[str, ...]
    """The parameters without a default."""
    platform: str
    device: str
    memory: int
    """Bytes that a worker may use."""
    batched: bool
    """Whether the experiment traces, so that a block is one vmapped program."""
    why: str = ""
    """Why it does not run in batches."""
    run_bytes: int = 0
    """The most bytes that one run holds at a time."""
    ranks: dict[str, int] = field(default_factory=dict)
    """The number of dimensions of every output, where it is known before a run."""
    dimensions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the dimensions of outputs, where the experiment gives them."""
    attributes: JSONObject = field(default_factory=dict)
    """Attributes of the dataset."""


@dataclass(frozen=True)
class Plan:
    """The blocks of a sweep, fixed when it started; stored as plan.json."""

    tile: tuple[int, ...]
    batched: bool
    dimensions: dict[str, tuple[str, ...]]
    attributes: JSONObject
    platform: str

    def to_json(self) -> JSONObject:
        """Return the record as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(data: JSONObject) -> "Plan":
        """Return the record that `to_json` wrote; raise a ValueError, KeyError or TypeError if it is damaged."""
        tile = tuple(data["tile"])
        if not all(isinstance(size, int) and size > 0 for size in tile):
            raise ValueError(f"the tile {tile} is not a shape")
        plan = Plan(
            tile=tile,
            batched=data["batched"],
            dimensions={name: tuple(dimensions) for name, dimensions in data["dimensions"].items()},
            attributes=data["attributes"],
            platform=data["platform"],
        )
        check_fields(plan)
        return plan


@dataclass(frozen=True)
class BlockTask:
    """The inputs of one block: a column of values for every parameter and the seeds, one row per run."""

    reference: ExperimentReference
    block: tuple[int, ...]
    root: int
    """The seed of the sweep."""
    columns: dict[str, list[Parameter]]
    seeds: list[int]
    width: int
    """The runs of a whole block; a block at the edge of the grid is padded to it."""
    batched: bool

    def point(self, index: int) -> dict[str, Parameter]:
        """Return the parameters of one run."""
        return {name: column[index] for name, column in self.columns.items()}


@dataclass(frozen=True)
class BlockResult:
    """The outputs of one block and its cost."""

    values: "dict[str, np.ndarray]"
    """The outputs, with a leading axis over the runs; none where every run raised an error."""
    errors: dict[int, str]
    """The messages of the runs that raised an error, by row."""
    seconds: float
    run_seconds: float
    """The seconds without compilation."""
    worker: str
    """Host and process."""
    compilations: int
    """The programs that the worker has compiled so far, or read from its cache."""
    compile_seconds: float
    """The seconds that these compilations took."""
