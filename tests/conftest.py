"""The file of a user, shared by the tests of `undertow analyze`."""

import pytest


@pytest.fixture
def file(tmp_path, request):
    """The file of a user: it holds the text `FILE` of the test module."""
    path = tmp_path / "mine.py"
    path.write_text(request.module.FILE)
    return path
