"""The folder of a sweep: its specification, its plan, and one zarr dataset that its blocks fill.

The arrays have their final shape from the start and one chunk per block. The chunks of a block are written to
temporary files, flushed and renamed, and the chunk of the flags `done` last: a flag means that its data are complete.
Plain `xarray.open_zarr` reads the dataset at any time.

Every chunk starts with its checksum (the filter `crc32` of zarr, which every reader of the dataset checks). The other
files of the dataset never change; a file `.undertow.json` holds their checksums, the plan and the outputs, from which
they can be written again. `plan.json` and `sweep.json` hold checksums of themselves.
"""

import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from undertow.execution import store
from undertow.execution.provenance import fingerprint
from undertow.execution.reading import DAMAGE, open_zarr, parse_json, plain_name, read_json
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.records import Plan
from undertow.execution.sweeps.spec import Spec

if TYPE_CHECKING:
    import xarray
    from zarr.abc.buffer import Buffer

__all__ = ["DONE", "FAILED", "Output", "Results", "folder_of", "read_folder"]

FORMAT = 2
"""The format version of sweeps; chunks have checksums since 2."""
TO_DO, DONE, FAILED = 0, 1, 2
SPEC, PLAN, DATA = "sweep.json", "plan.json", "results.zarr"


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
CHECKSUM_FILTER = {"id": "crc32"}
CHECKSUM_BYTES = 4


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
    spec = read_spec(folder)
    return spec, Results.opened(folder, spec)


def read_spec(folder: Path) -> Spec:
    """Return the stored specification of a sweep."""
    try:
        content = (folder / SPEC).read_bytes()
        written = parse_json(content)["undertow_format"]
        newer, older = written > FORMAT, written < FORMAT
        spec = None if newer or older else Spec.from_json(store.read_signed(content))
    except DAMAGE:
        raise store.StoreError(f"{folder}: there is no sweep here (no readable {SPEC}).") from None
    if spec is None and newer:
        raise store.NewerFormatError(f"{folder}: written by a newer undertow; upgrade undertow.")
    if spec is None:
        raise store.StoreError(
            f"{folder}: written by an older undertow, without checksums; xarray.open_zarr reads its {DATA}."
        )
    return spec


def write_spec(folder: Path, spec: Spec, digest: str) -> Spec:
    """Write sweep.json, the first file of a sweep, unless it is there; return the specification in it."""
    try:
        return read_spec(folder)
    except store.StoreError:  # or of another format: damaged too, since the name of the folder has a hash of the code
        content = spec.to_json() | {"digest": digest, "undertow_format": FORMAT}
        store.write_bytes(folder / SPEC, store.signed(content))
        return spec


def read_plan(folder: Path) -> Plan | None:
    """Return the stored plan of a sweep; None if it has none, or a damaged one."""
    try:
        return Plan.from_json(store.read_signed((folder / PLAN).read_bytes()))
    except DAMAGE:
        return None


def write_plan(folder: Path, plan: Plan) -> None:
    """Write plan.json, before the first block runs, unless it is there."""
    if read_plan(folder) != plan:
        store.write_bytes(folder / PLAN, store.signed(plan.to_json()))


class Results:
    """The dataset of a sweep, written block by block by one driver."""

    def __init__(self, path: Path, spec: Spec, plan: Plan, outputs: dict[str, Output]):
        self.path, self.spec, self.plan, self.outputs = path, spec, plan, outputs
        self.tiling = Tiling(spec.shape, plan.tile)
        self._mode = 0o666 & ~store.umask()
        self._flushers = ThreadPoolExecutor(8)

    @staticmethod
    def opened(folder: Path, spec: Spec) -> "Results | None":
        """Return the dataset of a folder; None where no block has finished yet.

        If its seal is damaged, the plan is read from plan.json, and the outputs from the attributes of the dataset.
        """
        path = folder / DATA
        if not path.exists():
            return None
        try:
            seal = store.read_signed((path / store.SEAL).read_bytes())
        except DAMAGE:
            seal = {}
        try:
            plan = Plan.from_json(seal["plan"]) if seal else read_plan(folder)
            described = seal["outputs"] if seal else read_json(path / ".zattrs")["outputs"]
            outputs = {n: Output(tuple(o[0]), o[1], tuple(o[2])) for n, o in parse_json(described.encode()).items()}
            whole = plan is not None and len(plan.tile) == len(spec.shape)
            whole = whole and all(map(plain_name, outputs)) and all(output.bytes >= 0 for output in outputs.values())
        except DAMAGE:
            plan, outputs, whole = None, {}, False
        if plan is None or not whole:
            raise _damaged(path)
        return Results(path, spec, plan, outputs)

    @staticmethod
    def created(folder: Path, spec: Spec, plan: Plan, outputs: dict[str, Output]) -> "Results":
        """Create an empty dataset; its metadata never change again."""
        results = Results(folder / DATA, spec, plan, outputs)
        store.write_folder(results.path, results._metadata())
        return results

    def _metadata(self) -> dict[str, bytes]:
        """Return the files of the dataset without data, and the seal over them."""
        described = json.dumps({name: [o.shape, o.dtype, o.dimensions] for name, o in self.outputs.items()})
        facts = {"undertow_format": FORMAT, "experiment": self.spec.experiment, "outputs": described,
                 "parameters": json.dumps(self.spec.parameters), **self.plan.attributes}  # fmt: skip
        files = _empty(self.spec, self.tiling, self.outputs, facts)
        checksums = {name: [len(content), zlib.crc32(content)] for name, content in files.items()}
        seal = {"undertow_format": FORMAT, "plan": self.plan.to_json(), "outputs": described, "files": checksums}
        return {**files, store.SEAL: store.signed(seal)}

    def write(self, block: tuple[int, ...], values: Mapping[str, np.ndarray], flags: np.ndarray) -> None:
        """Write one block: `values` and `flags` have a leading axis over its runs."""
        self._put_block(
            dict(self._chunk(name, block, np.asarray(values[name]), np.nan, o) for name, o in self.outputs.items()),
            dict([self._chunk("done", block, np.asarray(flags), TO_DO, FLAGS)]),
        )

    def fail(self, block: tuple[int, ...]) -> np.ndarray:
        """Mark a block as failed: its finished runs stay, all others become NaN; return its flags."""
        flags, _ = self._inspect(block)
        kept = np.zeros(self.tiling.tile, bool)
        kept[tuple(slice(0, n) for n in flags.shape)] = flags == DONE
        values = {}
        for name, output in self.outputs.items():
            path = self.path / name / _place(block, output)
            if kept.any():
                chunk = np.frombuffer(self._content(name, block) or b"", output.dtype)
                chunk = chunk.reshape((*self.tiling.tile, *output.shape)).copy()
                chunk[~kept] = np.nan
                values[path] = _checked(chunk)
            else:  # a missing chunk reads as NaN
                with store.readable_errors(self.path):
                    path.unlink(missing_ok=True)
        flags[flags != DONE] = FAILED
        self._put_block(values, dict([self._chunk("done", block, flags, TO_DO, FLAGS)]))
        return flags

    def _put_block(self, values: dict[Path, bytes], flags: dict[Path, bytes]) -> None:
        """Write the values, then the flags: a flag is on the disk only after its values."""
        with store.readable_errors(self.path):
            if values:
                self._put(values)
            self._put(flags)

    def _put(self, files: dict[Path, bytes]) -> None:
        """Write temporary files, flush them at the same time, which waits for the disk once, and rename them."""
        temporary: dict[Path, str] = {}
        try:
            for path, content in files.items():
                handle, name = tempfile.mkstemp(store.PARTIAL, f".{path.name}.", path.parent)
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
        return self.path / name / _place(block, output), _checked(chunk)

    def repair(self) -> None:
        """Remove temporary files of killed drivers and damaged chunks, and write damaged metadata again."""
        for folder in (self.path, *(item for item in self.path.iterdir() if item.is_dir())):
            store.remove_partial(folder)
        damaged = self._damaged_metadata()
        metadata = self._metadata() if damaged else {}
        if not set(damaged) <= set(metadata):  # the seal names files that are not part of the dataset
            damaged = [store.SEAL]
        if any(_read(self.path / name) != metadata[name] for name in set(metadata) - set(damaged)):
            raise _damaged(self.path)  # what is written again must fit what is not damaged
        for name in damaged:
            store.write_bytes(self.path / name, metadata[name])
        with store.readable_errors(self.path):
            for block in self._stored_blocks():
                _, damaged = self._inspect(block)
                for name in ("done", *damaged) if damaged else ():  # the flags first
                    (self.path / name / _place(block, self._output(name))).unlink(missing_ok=True)

    def flags(self) -> np.ndarray:
        """Return TO_DO, DONE or FAILED for every run. A block with missing or damaged files is TO_DO."""
        return self.inspect()[0]

    def inspect(self) -> tuple[np.ndarray, list[str]]:
        """Check every byte of the dataset; return the flags of all runs, and the damaged files."""
        flags, damaged = np.zeros(self.tiling.shape, np.int8), self._damaged_metadata()
        for block in self._stored_blocks():
            flags[self.tiling.region(block)], names = self._inspect(block)
            damaged += [f"{name}/{_place(block, self._output(name))}" for name in names]
        return flags, damaged

    def _inspect(self, block: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
        """Return the flags of one block, and the arrays whose chunks are damaged or missing."""
        inside = tuple(slice(0, part.stop - part.start) for part in self.tiling.region(block))
        content = self._content("done", block)
        flags = np.frombuffer(content or bytes(self.tiling.width), np.int8).reshape(self.tiling.tile)[inside].copy()
        needed = bool((flags == DONE).any())
        damaged = [
            name
            for name in (*self.outputs, "done")
            if self._content(name, block) is None
            and (needed or (self.path / name / _place(block, self._output(name))).exists())
        ]
        return (np.zeros_like(flags) if damaged else flags), damaged

    def _content(self, name: str, block: tuple[int, ...]) -> bytes | None:
        """Return the bytes of the numbers of a chunk; None if it is missing or damaged."""
        output = self._output(name)
        content = _read(self.path / name / _place(block, output))
        if content is None or len(content) != CHECKSUM_BYTES + self.tiling.width * output.bytes:
            return None
        checksum, numbers = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        return numbers if int.from_bytes(checksum, "little") == zlib.crc32(numbers) else None

    def _output(self, name: str) -> Output:
        return FLAGS if name == "done" else self.outputs[name]

    def _damaged_metadata(self) -> list[str]:
        """Return the files other than chunks that are not as they were written."""
        try:
            files = store.read_signed((self.path / store.SEAL).read_bytes())["files"]
            if any(".." in Path(name).parts or Path(name).is_absolute() for name in files):
                return [store.SEAL]
            contents = {name: _read(self.path / name) or b"" for name in files}
            return [n for n, wanted in files.items() if [len(contents[n]), zlib.crc32(contents[n])] != wanted]
        except DAMAGE:
            return [store.SEAL]

    def _stored_blocks(self) -> list[tuple[int, ...]]:
        """Return the blocks with a chunk of any array."""
        rank, blocks = len(self.tiling.shape), set()
        for name in (*self.outputs, "done"):
            chunks = [item.name.split(".") for item in (self.path / name).glob("[0-9]*")]
            blocks |= {tuple(map(int, parts[:rank])) for parts in chunks if all(part.isdecimal() for part in parts)}
        inside = lambda block: len(block) == rank and all(b < n for b, n in zip(block, self.tiling.grid, strict=True))
        return sorted(filter(inside, blocks))

    def open(self) -> "xarray.Dataset":
        """Open the dataset as it is now."""
        try:
            return open_zarr(self.path)
        except Exception as error:  # zarr and its codecs have their own errors
            raise store.StoreError(
                f"{self.path}: damaged, it cannot be read ({error}); delete it and run again."
            ) from error


def _damaged(path: Path) -> store.StoreError:
    return store.StoreError(f"{path}: damaged, it cannot be read; delete {path.parent} and run again.")


def _place(block: tuple[int, ...], output: Output) -> str:
    """Return the name of the chunk of a block in the array of an output."""
    return ".".join(str(index) for index in (*block, *(0 for _ in output.shape)))


def _checked(chunk: np.ndarray) -> bytes:
    """Return a chunk as zarr's filter `crc32` encodes it: the checksum of its bytes, then the bytes."""
    numbers = chunk.tobytes()
    return zlib.crc32(numbers).to_bytes(CHECKSUM_BYTES, "little") + numbers


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None if there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _flush_written(name: str) -> None:
    """Flush a written file to the disk."""
    handle = os.open(name, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _empty(spec: Spec, tiling: Tiling, outputs: dict[str, Output], facts: Mapping[str, object]) -> dict[str, bytes]:
    """Return the files of a dataset without data. A chunk is a checksum and the bytes of its numbers, uncompressed."""
    import numcodecs
    import xarray
    import zarr
    import zarr.storage

    checksum = numcodecs.get_codec(CHECKSUM_FILTER)
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
            dtype=output.dtype, fill_value=np.nan, compressors=None, filters=[checksum],
            attributes={"_ARRAY_DIMENSIONS": [*dimensions, *output.dimensions]},
        )  # fmt: skip
    meaning = {"flag_values": [TO_DO, DONE, FAILED], "flag_meanings": "to_do done failed"}
    group.create_array(
        "done", shape=tiling.shape, chunks=tiling.tile, dtype="i1", fill_value=None, compressors=None,
        filters=[checksum], attributes={"_ARRAY_DIMENSIONS": dimensions, **meaning},
    )  # fmt: skip
    zarr.consolidate_metadata(memory, zarr_format=2)
    return {name: buffer.to_bytes() for name, buffer in sorted(files.items())}
