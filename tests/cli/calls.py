"""Call the command line in this process."""

import pytest

from undertow import cli

FAST = "sensing-factor-two"
"""A claim that takes less than a second."""


def call(capsys, *arguments):
    """(exit status, stdout, stderr) of the command line, in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err
