"""Exit statuses, and the report of a mistake of the user."""

from undertow.cli import _status as status


def test_a_mistake_goes_to_stderr_in_one_line_and_has_its_own_status(capsys):
    assert status.complain("--jobs 0: größer als 0.") == status.MISTAKE == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "undertow: --jobs 0: größer als 0.\n")


def test_statuses_differ_and_success_is_zero():
    """130 is what a shell reports for Ctrl-C: 128 and the number of SIGINT."""
    assert (status.SUCCESS, status.SURPRISE, status.INTERRUPTED) == (0, 1, 130)
