"""Atomic storage of results on disk, with provenance and checksums.

A result is a folder: a dataset is a zarr folder that plain `xarray.open_zarr` reads, and the result of a claim has such
a folder inside. It is written to a temporary folder, flushed, and exchanged with the earlier result in one rename, so
that a process killed at any time leaves the old result or the new one. A small file `.undertow.json` inside, the seal,
holds the format version, the provenance, and the size and checksum of every other file, so that damage is detected.
Nothing is pickled.
"""

import ctypes
import errno
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.execution import reading
from undertow.execution.reading import JSONObject

if TYPE_CHECKING:
    import xarray
    from zarr.abc.buffer import Buffer

__all__ = [
    "FORMAT",
    "PARTIAL",
    "FolderLockedError",
    "FolderRemovedError",
    "JSONObject",
    "MissingError",
    "NewerFormatError",
    "StoreError",
    "encoded",
    "folder_lock",
    "load",
    "provenance_of",
    "read_signed",
    "readable_errors",
    "remove_partial",
    "save",
    "save_folder",
    "sealed",
    "signed",
    "umask",
    "writable_folder",
    "write_bytes",
    "write_folder",
]

FORMAT = 1
"""The format version; it increases whenever an older undertow could misread what a newer one writes."""

SEAL = ".undertow.json"
CHECKSUM = "checksum"
UNSIGNED = {"undertow_format", "provenance", "files"}
"""The names in a seal of earlier versions, which has no checksum of its own."""
PARTIAL = ".partial"
"""The ending of temporary files and folders, which a killed process leaves behind."""
RETIRED = ".retired"
"""The ending of an earlier result while it is replaced, where folders cannot be exchanged."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a disk that is full."""


class StoreError(Exception):
    """A file or folder cannot be used; the message is for the user."""


class MissingError(StoreError):
    """There is no stored result."""


class FolderLockedError(StoreError):
    """Another process is writing to the folder."""


class FolderRemovedError(StoreError):
    """The folder was removed or replaced while this process was writing to it."""


class NewerFormatError(StoreError):
    """A result that only a newer undertow can read. It must not be replaced."""


def save(path: Path | str, dataset: "xarray.Dataset", provenance: JSONObject) -> Path:
    """Write a dataset and its provenance to the zarr folder `path`, and replace an earlier one atomically."""
    return save_folder(path, encoded(dataset, provenance), provenance)


def save_folder(path: Path | str, files: Mapping[str, bytes], provenance: JSONObject) -> Path:
    """Write a folder of files with one seal over all of them, and replace an earlier one atomically."""
    path = Path(path)
    checksums = {name: _checksum(data) for name, data in files.items()}
    seal = {"undertow_format": FORMAT, "provenance": provenance, "files": checksums}
    write_folder(path, {**files, SEAL: signed(seal)})
    return path


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files and replace an earlier one atomically."""
    with readable_errors(path), _temporary_folder(path) as temporary:
        for name, data in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(data)
        os.chmod(temporary, 0o777 & ~umask())
        _flush_tree(temporary)
        _put_in_place(temporary, path)


def load(path: Path | str) -> "xarray.Dataset":
    """Read a dataset that `save` wrote, after checking the checksum of every file."""
    path = Path(path)
    _seal(path)
    try:
        return reading.open_zarr(path).load()
    except Exception as error:  # zarr and its codecs have their own errors
        raise StoreError(f"{path}: damaged, it cannot be read ({error}); delete it and run again.") from error


def provenance_of(path: Path | str) -> JSONObject:
    """Return the provenance of a stored result, after checking the checksum of every file."""
    return _seal(Path(path))["provenance"]


def encoded(dataset: "xarray.Dataset", provenance: JSONObject) -> dict[str, bytes]:
    """Return the files of the zarr folder of a dataset.

    They are made in memory: threads of zarr must not write to a temporary folder.
    """
    import zarr.storage

    for name, variable in dataset.variables.items():
        if variable.dtype.kind == "O":
            raise StoreError(f"`save`: variable {name!r} holds Python objects; store numbers, flags or plain text.")
    dataset = dataset.assign_attrs(undertow_format=FORMAT, provenance=json.dumps(provenance, default=str))
    files: "dict[str, Buffer]" = {}
    dataset.to_zarr(zarr.storage.MemoryStore(files), mode="w", zarr_format=2, consolidated=True)
    return {name: buffer.to_bytes() for name, buffer in sorted(files.items())}


def sealed(path: Path | str, *names: str) -> list[bytes]:
    """Return the content of files of a stored result, after checking the checksum of every file."""
    path = Path(path)
    files = _seal(path)["files"]
    for name in names:
        if name not in files:
            raise StoreError(f"{path}: damaged, its seal does not cover {name}; delete it and run again.")
    return [(path / name).read_bytes() for name in names]


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Write one file atomically: to a temporary file, flushed, then renamed."""
    path = Path(path)
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(PARTIAL, f".{path.name}.", path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~umask())
            os.replace(name, path)
            _flush(path.parent)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return path


def writable_folder(path: Path | str) -> Path:
    """Return the folder, created if necessary, after checking that files can be written to it."""
    path = Path(path)
    with readable_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(PARTIAL, ".probe.", path)
        os.close(handle)
        os.unlink(name)
    return path


def remove_partial(folder: Path) -> None:
    """Remove the temporary files and folders in a folder that killed processes left; its caller has the lock."""
    for item in folder.glob(f".*{PARTIAL}"):
        _remove(item)
    for item in folder.glob(f".*{RETIRED}"):
        if item.with_name(item.name[1:].removesuffix(RETIRED)).exists():  # else `_seal` moves it back
            _remove(item)


@contextmanager
def folder_lock(path: Path | str) -> Generator[Callable[[], None]]:
    """Lock a folder for one process; a second one raises an error at once. The lock ends with its process.

    Yields a function that raises an error if the folder was removed or replaced, and with it the lock.
    """
    import filelock

    file = Path(path) / ".lock"
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise FolderLockedError(
            f"{path}: another run is writing to this folder; wait for it, or choose another with --out."
        ) from None
    except OSError as error:  # a folder, a link, the file of another user, a disk that cannot be written
        if error.errno in (errno.ENOENT, *FULL):
            with readable_errors(Path(path)):
                raise
        raise StoreError(
            f"{path}: the lock {lock.lock_file} cannot be opened ({error.strerror or error}); delete it if no run is "
            "writing to this folder, or choose another with --out."
        ) from None
    locked = _identity(file)

    def check() -> None:
        if _identity(file) != locked:
            raise FolderRemovedError(f"{path}: the folder was removed while this run was writing to it; run it again.")

    try:
        yield check
    finally:
        lock.release()


def _identity(file: Path) -> tuple[int, int] | None:
    """Return the device and the number of a file; None if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _seal(path: Path) -> JSONObject:
    """Return the seal of a stored result, after checking it."""
    retired = _retired(path)
    if not path.exists() and retired.exists():  # killed between the two renames of a replacement
        retired.rename(path)
    if not path.is_dir():
        raise MissingError(f"{path}: there is no stored result here.")
    try:
        content = (path / SEAL).read_bytes()
        seal = reading.parse_json(content)
        if set(seal) != UNSIGNED:
            seal = read_signed(content)
        newer, written, files = seal["undertow_format"] > FORMAT, seal["undertow_format"], dict(seal["files"])
        seal["provenance"].items()
    except reading.DAMAGE:
        raise StoreError(f"{path}: not a result of undertow, or damaged (no readable {SEAL}).") from None
    if newer:
        raise NewerFormatError(
            f"{path}: written by a newer undertow (format {written}, this one reads {FORMAT}); upgrade undertow."
        )
    for name, checksum in files.items():
        file = path / name
        inside = file.is_relative_to(path) and ".." not in file.parts
        if not inside or not file.is_file() or _checksum(file.read_bytes()) != checksum:
            raise StoreError(f"{path}: damaged, {name} is not as it was written; delete it and run again.")
    return seal


def signed(data: JSONObject) -> bytes:
    """Return a JSON object as text that holds its own checksum."""
    text = json.dumps(data, default=str)
    return json.dumps(json.loads(text) | {CHECKSUM: zlib.crc32(text.encode())}, indent=1).encode()


def read_signed(content: bytes) -> JSONObject:
    """Return the JSON object that `signed` wrote; raise one of the errors of `DAMAGE` if a byte has changed."""
    data = reading.parse_json(content)
    if signed({name: value for name, value in data.items() if name != CHECKSUM}) != content:
        raise ValueError("its checksum is not that of its content")
    return data


def _checksum(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]


@contextmanager
def _temporary_folder(path: Path) -> Generator[Path]:
    """Yield a temporary folder next to `path`; it is removed unless it was renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(PARTIAL, f".{path.name}.", path.parent))
    try:
        yield temporary
    finally:
        _remove(temporary)


def _remove(item: Path) -> None:
    """Remove a file or a folder; what cannot be removed stays."""
    if item.is_dir() and not item.is_symlink():
        shutil.rmtree(item, ignore_errors=True)
    else:
        with suppress(OSError):
            item.unlink()


def _retired(path: Path) -> Path:
    return path.with_name(f".{path.name}{RETIRED}")


def _put_in_place(temporary: Path, path: Path) -> None:
    """Exchange a folder with an earlier one in one rename; its caller removes the earlier one.

    Where the system cannot exchange folders, the earlier one moves away first; `_seal` moves it back after a kill.
    """
    if path.is_symlink():
        raise StoreError(f"{path}: a symbolic link, which is not replaced; delete it and run again.")
    if not path.exists():
        temporary.rename(path)
    elif not _exchange(temporary, path):
        retired = _retired(path)
        _remove(retired)
        path.rename(retired)
        temporary.rename(path)
        _remove(retired)
    _flush(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one rename; return False where the system or the file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux; Python has no function for it
    if call is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    error = ctypes.get_errno()
    if error in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(error, os.strerror(error), str(other))


def umask() -> int:
    """Return the umask of the process; temporary files are created for their owner alone."""
    try:
        status = dict(
            line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
        )
        return int(status["Umask"], 8)
    except (OSError, KeyError, ValueError):  # elsewhere it can only be read by setting it, for all threads
        mask = os.umask(0)
        os.umask(mask)
        return mask


def _flush_tree(folder: Path) -> None:
    for item in [*folder.rglob("*"), folder]:
        _flush(item)


def _flush(item: Path) -> None:
    """Flush a file or a folder to the disk; folders cannot be opened on Windows and need no flush there."""
    try:
        handle = os.open(item, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def readable_errors(path: Path) -> Generator[None]:
    """Turn errors of the operating system into messages for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StoreError(f"{path}: the disk is full; nothing was left half-written. Free some space.") from error
        if error.errno == errno.ENOENT:
            raise FolderRemovedError(
                f"{path}: the folder was removed while this run was writing to it; run it again."
            ) from error
        if error.errno in (
            errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG,
            errno.ELOOP, errno.EINVAL,
        ):  # fmt: skip
            raise StoreError(f"{path}: cannot write here ({error.strerror}); choose another folder.") from error
        raise
