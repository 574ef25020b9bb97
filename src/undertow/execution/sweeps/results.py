"""The folder of a sweep: its specification, its plan, and one zarr dataset that its blocks fill.

The arrays have their final shape from the start and one chunk per block. The chunks of a block are written to
temporary files, flushed and renamed, and the chunk of the flags `done` last: a flag means that its data are complete.
Plain `xarray.open_zarr` reads the dataset at any time.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from undertow.execution import store
from undertow.execution.provenance import fingerprint
from undertow.execution.reading import DAMAGE, open_zarr, plain_name, read_json
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.records import Plan
from undertow.execution.sweeps.spec import Spec

if TYPE_CHECKING:
    import xarray
    from zarr.abc.buffer import Buffer

__all__ = ["DONE", "FAILED", "Output", "Results", "folder_of", "read_folder"]

TO_DO, DONE, FAILED = 0, 1, 2
SPEC, PLAN, DATA = "sweep.json", "plan.json", "results.zarr"
CHUNK = re.compile(r"\d+(\.\d+)*")
"""The name of a chunk; other files in the folder of an array are none of undertow's."""


@dataclass(frozen=True)
class Output:
    """One array of the results: its shape and dimensions at a single run."""

    shape: tuple[int, ...]
    dtype: str
    dimensions: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The bytes of a single run."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


FLAGS = Output((), "|i1", ())


def folder_of(spec: Spec, digest: str, out: Path) -> Path:
    """Return the folder of a specification: the same one gives the same folder, a changed one another beside it."""
    facts = spec.facts()
    file, colon, name = spec.experiment.rpartition(":")
    if colon:  # the folder depends on the content of a file and not on its path
        facts["experiment"] = f"{Path(file).name}:{name}"
    title = re.sub(r"[^\w-]", "_", name.strip("<>"))[:50]  # a name with separators must not lead out of the folder
    return out / f"{title}-{fingerprint(facts, digest)}"


def read_folder(folder: Path) -> tuple[Spec, "Results | None"]:
    """Return the specification and, if a block has finished, the results of a sweep's folder."""
    try:
        stored = read_json(folder / SPEC)
        newer = stored["undertow_format"] > store.FORMAT
        spec = None if newer else Spec.from_json(stored)
    except DAMAGE:
        raise store.StoreError(f"{folder}: there is no sweep here (no readable {SPEC}).") from None
    if spec is None:
        raise store.NewerFormatError(f"{folder}: written by a newer undertow; upgrade undertow.")
    plan = read_plan(folder)
    return spec, None if plan is None else Results.opened(folder, Tiling(spec.shape, plan.tile))


def write_spec(folder: Path, spec: Spec, digest: str) -> None:
    """Write sweep.json, the first file of a sweep."""
    content = spec.to_json() | {"digest": digest, "undertow_format": store.FORMAT}
    store.write_bytes(folder / SPEC, json.dumps(content, indent=1).encode())


def read_plan(folder: Path) -> Plan | None:
    """Return the stored plan of a sweep; None if it has not started."""
    path = folder / PLAN
    if not path.exists() and not (folder / DATA).exists():
        return None
    try:
        return Plan.from_json(read_json(path))
    except DAMAGE:
        raise store.StoreError(f"{path}: damaged, it cannot be read; delete {folder} and run again.") from None


def write_plan(folder: Path, plan: Plan) -> None:
    """Write plan.json, before the first block runs."""
    store.write_bytes(folder / PLAN, json.dumps(plan.to_json(), indent=1).encode())


class Results:
    """The dataset of a sweep, written block by block by one driver."""

    def __init__(self, path: Path, tiling: Tiling, outputs: dict[str, Output]):
        self.path, self.tiling, self.outputs = path, tiling, outputs
        self._mode = 0o666 & ~store._umask()
        self._flushers = ThreadPoolExecutor(8)

    @staticmethod
    def opened(folder: Path, tiling: Tiling) -> "Results | None":
        """Return the dataset of a folder; None where no block has finished yet."""
        path = folder / DATA
        if not path.exists():
            return None
        try:
            described = read_json(path / ".zattrs")["outputs"]
            outputs = {n: Output(tuple(o[0]), o[1], tuple(o[2])) for n, o in json.loads(described).items()}
            shape = read_json(path / "done" / ".zarray")
            whole = tuple(shape["shape"]) == tiling.shape and tuple(shape["chunks"]) == tiling.tile
            whole = whole and all(map(plain_name, outputs)) and all(output.bytes >= 0 for output in outputs.values())
        except DAMAGE:
            whole = False
        if not whole:
            raise store.StoreError(f"{path}: damaged, it cannot be read; delete {folder} and run again.")
        return Results(path, tiling, outputs)

    @staticmethod
    def created(
        folder: Path, spec: Spec, tiling: Tiling, outputs: dict[str, Output], attributes: store.JSONObject
    ) -> "Results":
        """Create an empty dataset; its metadata never change again."""
        path = folder / DATA
        described = json.dumps({name: [o.shape, o.dtype, o.dimensions] for name, o in outputs.items()})
        facts = {"undertow_format": store.FORMAT, "experiment": spec.experiment, "outputs": described,
                 "parameters": json.dumps(spec.parameters), **attributes}  # fmt: skip
        with store._readable_errors(path), store._temporary_folder(path) as temporary:
            for name, content in _empty(spec, tiling, outputs, facts).items():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                (temporary / name).write_bytes(content)
            temporary.chmod(0o777 & ~store._umask())
            store._flush_tree(temporary)
            store._put_in_place(temporary, path)
        return Results(path, tiling, outputs)

    def write(self, block: tuple[int, ...], values: Mapping[str, np.ndarray], flags: np.ndarray) -> None:
        """Write one block: `values` and `flags` have a leading axis over its runs."""
        self._put_block(
            dict(self._chunk(name, block, np.asarray(values[name]), np.nan, o) for name, o in self.outputs.items()),
            dict([self._chunk("done", block, np.asarray(flags), TO_DO, FLAGS)]),
        )

    def fail(self, block: tuple[int, ...]) -> np.ndarray:
        """Mark a block as failed: its finished runs stay, all others become NaN; return its flags."""
        flags = self._flags_of(block, lambda name, place: _size(self.path / name / place))
        kept = np.zeros(self.tiling.tile, bool)
        kept[tuple(slice(0, n) for n in flags.shape)] = flags == DONE
        values = {}
        if kept.any():
            for name, output in self.outputs.items():
                path = self.path / name / _place(block, output)
                chunk = np.fromfile(path, output.dtype).reshape((*self.tiling.tile, *output.shape))
                chunk[~kept] = np.nan
                values[path] = chunk.tobytes()
        else:  # a missing chunk reads as NaN
            with store._readable_errors(self.path):
                for name, output in self.outputs.items():
                    (self.path / name / _place(block, output)).unlink(missing_ok=True)
        flags[flags != DONE] = FAILED
        self._put_block(values, dict([self._chunk("done", block, flags, TO_DO, FLAGS)]))
        return flags

    def _put_block(self, values: dict[Path, bytes], flags: dict[Path, bytes]) -> None:
        """Write the values, then the flags: a flag is on the disk only after its values."""
        with store._readable_errors(self.path):
            if values:
                self._put(values)
            self._put(flags)

    def _put(self, files: dict[Path, bytes]) -> None:
        """Write temporary files, flush them at the same time, which waits for the disk once, and rename them."""
        temporary: dict[Path, str] = {}
        try:
            for path, content in files.items():
                handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
                temporary[path] = name
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.chmod(name, self._mode)
            list(self._flushers.map(_flush_written, temporary.values()))
            for path, name in temporary.items():
                os.replace(name, path)
            list(self._flushers.map(store._flush, {path.parent for path in files}))
        except BaseException:
            for name in temporary.values():
                Path(name).unlink(missing_ok=True)
            raise

    def _chunk(
        self, name: str, block: tuple[int, ...], runs: np.ndarray, empty: float | int, output: Output
    ) -> tuple[Path, bytes]:
        region = self.tiling.region(block)
        inside = tuple(slice(0, part.stop - part.start) for part in region)
        chunk = np.full((*self.tiling.tile, *output.shape), empty, output.dtype)
        chunk[inside] = runs.reshape((*(part.stop for part in inside), *output.shape))
        return self.path / name / _place(block, output), chunk.tobytes()

    def tidy(self) -> None:
        """Remove temporary files that a killed driver left."""
        for name in (*self.outputs, "done"):
            for stray in (self.path / name).glob(".[0-9]*"):
                stray.unlink(missing_ok=True)

    def flags(self) -> np.ndarray:
        """Return TO_DO, DONE or FAILED for every run. A block with missing or truncated files is TO_DO."""
        flags = np.zeros(self.tiling.shape, np.int8)
        sizes = {name: self._sizes(name) for name in (*self.outputs, "done")}
        for place, size in sizes["done"].items():
            if size != self.tiling.width:
                continue
            block = tuple(int(part) for part in place.split("."))
            if len(block) != len(self.tiling.grid) or any(i >= n for i, n in zip(block, self.tiling.grid, strict=True)):
                continue
            flags[self.tiling.region(block)] = self._flags_of(block, lambda name, place: sizes[name].get(place))
        return flags

    def _flags_of(self, block: tuple[int, ...], size: Callable[[str, str], int | None]) -> np.ndarray:
        """Return the flags of one block, given the sizes of its files by array and chunk."""
        inside = tuple(slice(0, part.stop - part.start) for part in self.tiling.region(block))
        place = _place(block, FLAGS)
        if size("done", place) != self.tiling.width:
            return np.zeros([part.stop for part in inside], np.int8)
        flags = np.fromfile(self.path / "done" / place, np.int8).reshape(self.tiling.tile)[inside]
        whole = all(
            size(name, _place(block, output)) == self.tiling.width * output.bytes
            for name, output in self.outputs.items()
        )
        return flags if whole or not (flags == DONE).any() else np.zeros_like(flags)

    def _sizes(self, name: str) -> dict[str, int]:
        try:
            with os.scandir(self.path / name) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if CHUNK.fullmatch(entry.name)}
        except OSError as error:
            raise store.StoreError(
                f"{self.path / name}: damaged, it cannot be read ({error.strerror}); delete {self.path.parent} and run "
                "again."
            ) from None

    def open(self) -> "xarray.Dataset":
        """Open the dataset as it is now."""
        try:
            return open_zarr(self.path)
        except Exception as error:  # zarr and its codecs have their own errors
            raise store.StoreError(
                f"{self.path}: damaged, it cannot be read ({error}); delete it and run again."
            ) from error


def _place(block: tuple[int, ...], output: Output) -> str:
    """Return the name of the chunk of a block in the array of an output."""
    return ".".join(str(index) for index in (*block, *(0 for _ in output.shape)))


def _size(path: Path) -> int | None:
    """Return the size of a file in bytes; None if there is no file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _flush_written(name: str) -> None:
    """Flush a written file to the disk."""
    handle = os.open(name, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _empty(spec: Spec, tiling: Tiling, outputs: dict[str, Output], facts: Mapping[str, object]) -> dict[str, bytes]:
    """Return the files of a dataset without data. Chunks are uncompressed: the bytes of their numbers."""
    import xarray
    import zarr
    import zarr.storage

    coordinates: dict[str, tuple[str, np.ndarray]] = {"seed": ("seed", np.arange(spec.seeds))}
    for axis in spec.axes:
        if list(axis.values) != [axis.name]:
            coordinates[axis.name] = (axis.name, np.arange(axis.size))
        for parameter, values in axis.values.items():
            coordinates[parameter] = (axis.name, np.asarray(values))
    files: "dict[str, Buffer]" = {}
    memory = zarr.storage.MemoryStore(files)
    xarray.Dataset(coords=coordinates, attrs=dict(facts)).to_zarr(memory, mode="w", zarr_format=2, consolidated=False)
    group = zarr.open_group(memory, mode="a", zarr_format=2)
    dimensions = [*(axis.name for axis in spec.axes), "seed"]
    for name, output in outputs.items():
        group.create_array(
            name, shape=(*tiling.shape, *output.shape), chunks=(*tiling.tile, *(max(1, n) for n in output.shape)),
            dtype=output.dtype, fill_value=np.nan, compressors=None,
            attributes={"_ARRAY_DIMENSIONS": [*dimensions, *output.dimensions]},
        )  # fmt: skip
    meaning = {"flag_values": [TO_DO, DONE, FAILED], "flag_meanings": "to_do done failed"}
    group.create_array(
        "done", shape=tiling.shape, chunks=tiling.tile, dtype="i1", fill_value=None, compressors=None,
        attributes={"_ARRAY_DIMENSIONS": dimensions, **meaning},
    )  # fmt: skip
    zarr.consolidate_metadata(memory, zarr_format=2)
    return {name: buffer.to_bytes() for name, buffer in sorted(files.items())}
