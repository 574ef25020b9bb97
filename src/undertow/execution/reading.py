"""Read files that may be damaged, or made by somebody else: JSON, records of it, and zarr folders.

Nothing in them is executed: zarr codecs that would unpickle data are rejected before a byte is decoded.
"""

import json
import types
import typing
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    import xarray

__all__ = ["DAMAGE", "JSONObject", "check_fields", "open_zarr", "parse_json", "plain_name", "read_json"]

JSONObject = dict[str, Any]
"""A JSON object as Python reads it: plain values of any kind by name."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""The errors of reading a file that is missing, is not JSON, or is JSON of another structure."""
PLAIN = frozenset((str, int, float, bool, type(None)))
UNIONS = (typing.Union, types.UnionType)
CODECS = frozenset((
    "blosc", "zstd", "zlib", "gzip", "bz2", "lzma", "lz4", "shuffle", "delta", "vlen-utf8", "vlen-bytes",
    "crc32",
))  # fmt: skip
"""The codecs of zarr that compress or check, and do nothing else."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise an `OSError` or a `ValueError` where there is none.

    The content may be anything, such as a list; callers check its structure or catch `DAMAGE`.
    """
    return parse_json(path.read_bytes())


def parse_json(content: bytes) -> Any:
    """Return what the content of a JSON file says; raise a `ValueError` where it is not JSON."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_fields(record: object) -> None:
    """Raise a `ValueError` where a field of a dataclass has a value of another type than its annotation.

    >>> from dataclasses import make_dataclass
    >>> from undertow.execution.reading import check_fields
    >>> check_fields(make_dataclass("Machine", [("device", str)])(3))
    Traceback (most recent call last):
    ValueError: `device` of a Machine is 3, which is not a str
    """
    for name, kind in _hints(type(record)).items():
        value = getattr(record, name)
        if not _fits(value, kind):
            what = getattr(kind, "__name__", str(kind))
            raise ValueError(f"`{name}` of a {type(record).__name__} is {str(value)[:60]!s}, which is not a {what}")


@cache
def _hints(kind: type) -> dict[str, object]:
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if ClassVar not in (hint, typing.get_origin(hint))}


@cache
def _parts(kind: object) -> tuple[object, tuple]:
    return typing.get_origin(kind), typing.get_args(kind)


def _fits(value: object, kind: object) -> bool:
    """Return whether a value has a type; values of arbitrary type always do."""
    origin, inner = _parts(kind)
    if kind is Any or (type(value) in PLAIN and (type(value) is kind or (type(value) in inner and origin in UNIONS))):
        return True
    if origin in UNIONS:
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if not isinstance(kind, type) or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return False
    if is_dataclass(value):
        check_fields(value)
    return True


def plain_name(name: str) -> bool:
    """Return whether a name is one component of a path, such as the name of the folder of a claim."""
    return 0 < len(name) <= 200 and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


def open_zarr(path: Path) -> "xarray.Dataset":
    """Open a zarr folder of format 2, after checking that none of its arrays has a codec that could execute code.

    zarr itself decodes an array with whatever codec its metadata name, and one of them unpickles. A damaged folder
    raises one of the errors of `DAMAGE`, or another error of zarr.
    """
    import xarray

    arrays = [read_json(file) for file in path.rglob(".zarray")]
    described = read_json(path / ".zmetadata")["metadata"]
    arrays += [array for name, array in described.items() if name.endswith(".zarray")]
    for array in arrays:
        for codec in [*(array["filters"] or []), *([array["compressor"]] if array["compressor"] else [])]:
            if codec["id"] not in CODECS:
                raise ValueError(f"an array has the codec {codec['id']!r}, which undertow does not write")
    return xarray.open_zarr(path, zarr_format=2, consolidated=True)
