"""The check of an error message: one clear sentence that names the argument and says what to do."""

from collections.abc import Callable
from typing import Any

import pytest


def assert_explained(call: Callable[[], Any], message: str) -> None:
    """Check that `call` raises an error whose text matches `message`, quotes the call and has one line."""
    with pytest.raises((ValueError, TypeError, AttributeError), match=message) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text, "one sentence"
    assert text.startswith("`"), "quotes the call"
