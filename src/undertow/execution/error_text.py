"""Text for exceptions that a user's code raises: the type, the first line of the message, and the place."""

import sysconfig
import traceback
from pathlib import Path

import undertow

__all__ = ["error_message"]

LONGEST = 300
"""The largest number of characters of a message, without the place."""
_LIBRARIES = [Path(undertow.__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))]
_PACKAGES = {"site-packages", "dist-packages"}


def error_message(error: BaseException) -> str:
    """Return the type of an exception, the first line of its message, and the line of the user's file that led to it.

    The place is that of the innermost call in a file that is neither undertow's nor of an installed package.

    >>> from undertow.execution.error_text import error_message
    >>> error_message(ValueError("too wide"))  # not raised, so without a place
    'ValueError: too wide'
    """
    message = f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST]
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f"{message} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else message


def _is_own(filename: str) -> bool:
    """Return whether a file is the user's own: a file on disk outside the folders of libraries."""
    file = Path(filename)
    installed = not _PACKAGES.isdisjoint(file.parts) or any(file.is_relative_to(folder) for folder in _LIBRARIES)
    return file.is_file() and not installed
