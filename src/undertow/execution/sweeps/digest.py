"""A hash of a user's code and data, under which the results of a sweep are stored.

The hash of a function covers its bytecode and constants, its defaults and annotations, and the values that it takes
from its module and from enclosing functions: functions in turn, numbers, text, arrays, and lists, tuples, dicts, sets
and dataclasses of these (problems, noises and other modules of equinox are dataclasses). The position of a function in
its file does not matter. Modules and functions of installed packages count by their names; other objects count by their
types.
"""

import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from undertow.execution.provenance import Parameters
from undertow.execution.sweeps.spec import SpecError

__all__ = ["digest_of", "digest_of_value"]

PLAIN = (int, float, complex, str, bytes, range, slice, type(None), type(...))
"""Types whose `repr` is complete and the same in every process."""


def digest_of(experiment: str | Callable) -> str:
    """Return the hash of a function, or of the file of 'file.py:name'; empty for undertow's own experiments.

    >>> from undertow.execution.sweeps.digest import digest_of
    >>> factor = [2.0]
    >>> def scaled(key, *, a: float):
    ...     return {"x": factor[0] * a}
    >>> before = digest_of(scaled)
    >>> factor[0] = 3.0
    >>> digest_of(scaled) == before
    False
    """
    if not isinstance(experiment, str):
        function = inspect.unwrap(experiment)
        if not isinstance(function, FunctionType):
            raise SpecError("`ut.sweep`: give a function, or its name as 'file.py:name'.")
        facts = _Facts({})
        return _hashed(repr((facts.of_own(function), facts.of(experiment))).encode())
    file, colon, _ = experiment.rpartition(":")
    if not colon:
        return ""
    try:
        return _hashed(Path(file).read_bytes())
    except OSError as error:
        raise SpecError(f"{file}: cannot be read ({error.strerror}).") from None


def digest_of_value(value: object) -> str:
    """Return the hash of a value: of its data, and of the functions in it.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.execution.sweeps.digest import digest_of_value
    >>> problem = lambda data: ut.Problem(lambda w, x: (w - x) ** 2, jnp.array(data))
    >>> hashes = [digest_of_value(problem(data)) for data in ([1.0, 2.0], [1.0, 2.0], [1.0, 2.5])]
    >>> hashes[0] == hashes[1], hashes[0] == hashes[2]
    (True, False)
    """
    return _hashed(repr(_Facts({}).of(value)).encode())


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class _Facts:
    """Values as nested tuples of text, the same in every process. A value that occurred before is its number."""

    def __init__(self, occurred: dict[int, tuple[int, object]]):
        self.occurred = occurred  # with the values: an id is unique only while its object exists

    def of(self, value: object) -> tuple:
        if isinstance(value, PLAIN):
            return type(value).__name__, repr(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if isinstance(value, CodeType):
            return self.of_code(value)
        if isinstance(value, tuple):
            return "tuple", *map(self.of, value)
        if isinstance(value, frozenset):
            return self.of_set(value)
        if isinstance(value, functools.partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        if isinstance(value, list | dict | set):
            return self.once(value, self.of_container)
        try:
            functions = _functions_in(value)
            own = [function for function in functions if not _installed(function)]
            if own:
                return "functions", *map(self.of_own, own)
            if dataclasses.is_dataclass(value) and not (functions or isinstance(value, type)):
                return self.once(value, self.of_record)
            return _array(value) or ("object", _name(type(value)), *map(_name, functions or [value]))
        except Exception:  # an object whose attributes raise errors
            return "object", _name(type(value))

    def once(self, value: object, facts_of: Callable[..., tuple]) -> tuple:
        """Return the facts of a value the first time, and its number afterwards; this ends cycles."""
        if id(value) in self.occurred:
            return "met", self.occurred[id(value)][0]
        self.occurred[id(value)] = len(self.occurred), value
        return facts_of(value)

    def of_container(self, value: list | dict | set) -> tuple:
        if isinstance(value, set):
            return self.of_set(value)
        if isinstance(value, dict):
            return "dict", *((self.of(name), self.of(item)) for name, item in value.items())
        return "list", *map(self.of, value)

    def of_record(self, value: Parameters) -> tuple:
        names = [field.name for field in dataclasses.fields(value)]
        return "record", _name(type(value)), *((name, self.of(getattr(value, name, None))) for name in names)

    def of_set(self, value: set | frozenset) -> tuple:
        """Sort the elements, whose order depends on the process; each is hashed independently for the same reason."""
        return "set", *sorted((_Facts(dict(self.occurred)).of(item) for item in value), key=repr)

    def of_own(self, function: FunctionType) -> tuple:
        return self.once(function, self.of_function)

    def of_function(self, function: FunctionType) -> tuple:
        code, outside = function.__code__, function.__globals__
        around = {name: outside[name] for name in sorted(_names(code) & {*outside})}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not filled yet
                around[name] = cell.cell_contents
        written = (code, function.__defaults__, function.__kwdefaults__, _annotations(function))
        return "function", *map(self.of, written), *((name, self.of(value)) for name, value in around.items())

    def of_code(self, code: CodeType) -> tuple:
        """Return compiled code without its position."""
        return (
            "code", code.co_code.hex(), code.co_exceptiontable.hex(), code.co_names, code.co_varnames,
            *map(self.of, code.co_consts),
        )  # fmt: skip


def _names(code: CodeType) -> set[str]:
    """Return the names that compiled code, or code inside it, takes from its module."""
    own = {i.argval for i in dis.get_instructions(code) if "GLOBAL" in i.opname or i.opname == "LOAD_NAME"}
    return own.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _annotations(function: FunctionType) -> dict[str, object]:
    """Return the annotations, which decide which parameters are traced."""
    try:
        return dict(function.__annotations__)
    except NameError:  # names that exist for a type checker alone
        return {}


def _functions_in(value: object) -> list[FunctionType]:
    """Return the function that a value is, and those that it wraps, as `jax.jit` and decorators do."""
    chain = [value]
    while hasattr(chain[-1], "__wrapped__") and len(chain) < 100:
        chain.append(chain[-1].__wrapped__)
    return [part for part in chain if isinstance(part, FunctionType)]


def _installed(function: FunctionType) -> bool:
    """Return whether a function belongs to Python, to an installed package or to undertow, and not to the user."""
    file = Path(function.__code__.co_filename)
    return (
        bool({"site-packages", "dist-packages"} & {*file.parts})
        or file.is_relative_to(sysconfig.get_paths()["stdlib"])
        or str(file).startswith(("<frozen ", "<@beartype"))
        or (function.__module__ or "").partition(".")[0] == "undertow"
    )


def _name(value: object) -> tuple[str, ...]:
    """Return the module and the name of an object, as far as it has them."""
    parts = (getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None)))
    return tuple(part for part in parts if isinstance(part, str))


def _array(value: object) -> tuple | None:
    """Return the dtype, shape and hash of an array of any library; None for other values."""
    import jax
    import numpy as np

    if not all(hasattr(value, name) for name in ("__array__", "dtype", "shape")) or isinstance(value, type):
        return None
    try:
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return "keys", str(value.dtype), _array(jax.random.key_data(value))
        array = np.asarray(value)
    except Exception:  # on a device that numpy cannot read, or traced
        return None
    if array.dtype.hasobject:
        return None
    return "array", str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
