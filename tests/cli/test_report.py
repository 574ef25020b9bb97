"""`undertow report`: the same page from stored results."""

from tests.cli.calls import call


def test_report_builds_again(verified, capsys):
    out, _ = verified
    before = (out / "report.html").read_text()
    (out / "report.html").unlink()
    (out / ".report.html.abc.partial").touch()  # left by one that was killed
    status, printed, _ = call(capsys, "report", out)
    assert status == 0
    assert printed.strip().endswith("report.html")
    assert (out / "report.html").read_text() == before
    assert not list(out.glob(".*.partial"))
