"""Exit statuses, and how a command reports a mistake of the user."""

import sys

__all__ = ["INTERRUPTED", "MISTAKE", "SUCCESS", "SURPRISE", "complain"]

SUCCESS, SURPRISE, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def complain(message: str) -> int:
    """Print an error message and return the exit status."""
    print(f"undertow: {message}", file=sys.stderr)
    return MISTAKE
