"""Surroundings that are not those of the author: containers, locks, terminals, files of others. A sentence for each."""

import io
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.calls import FAST, call
from undertow.cli import _status, degrade_output
from undertow.execution import settings, store
from undertow.execution.sweeps import drive
from undertow.execution.sweeps.experiments import find
from undertow.execution.sweeps.plan import Job
from undertow.execution.sweeps.results import folder_of
from undertow.execution.sweeps.spec import SpecError, as_spec
from undertow.execution.workers import Cluster, InProcess, WorkersUnreachableError

BARE = """
import os, pwd, sys

os.environ.pop("HOME", None)


def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")


pwd.getpwuid = unknown
from undertow.cli import main

for arguments in (sys.argv[2:], ["report", sys.argv[1]], ["list"], ["errata"], ["verify", FAST, "--jobs", "0"],
                  ["report", sys.argv[1] + "/nowhere"], ["sweep", "run", sys.argv[1] + "/nowhere.toml"]):
    try:
        main(arguments)
    except SystemExit as ended:
        print("STATUS", ended.code)
""".replace("FAST", repr(FAST))


@pytest.mark.parametrize("options", [[], pytest.param(["-O"], marks=pytest.mark.slow)], ids=["", "-O"])
def test_no_home_an_ascii_terminal_and_no_assertions(tmp_path, options):
    """As in a container: HOME is not set, the user has no passwd entry, the locale is C; and Python without asserts."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "XLA_FLAGS")}
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    source = str(Path(settings.__file__).parents[2])
    paths = {"PYTHONPATH": os.pathsep.join([source, kept.get("PYTHONPATH", "")]), "TMPDIR": str(tmp_path)}
    command = [sys.executable, *options, "-c", BARE, tmp_path / "out"]
    verify = ["verify", FAST, "--scale", "smoke", "--jobs", "1", "--out", tmp_path / "out"]
    done = subprocess.run([*command, *verify], env=kept | ascii_only | paths, capture_output=True, cwd=tmp_path)
    out, err = done.stdout.decode("ascii"), done.stderr.decode("ascii")
    assert done.returncode == 0, err
    statuses = [int(line.split()[1]) for line in out.splitlines() if line.startswith("STATUS")]
    assert statuses == [0, 0, 0, 0, 2, 2, 2], err
    assert "Traceback" not in out + err
    assert "+-" in out  # the standard error of the verdict
    assert "give at least 1" in err
    assert (tmp_path / "out" / "report.html").is_file()


def test_without_a_home_there_is_no_cache(tmp_path, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "UNDERTOW_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert settings._cache_folder() is None
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings._cache_folder() == tmp_path / ".cache" / "undertow"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNDERTOW_CACHE", str(tmp_path / "file" / "x"))
    assert settings._cache_folder() is None


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "1.5 +- 0.1 theta^2 <= ? -"), ("latin-1", "1.5 ± 0.1 theta² <= ? -")]
)
def test_characters_that_a_terminal_does_not_have(monkeypatch, encoding, shown):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    degrade_output()
    print("1.5 ± 0.1 θ² ≤ 漢 –", flush=True)
    assert written.getvalue().decode(encoding).strip() == shown
    with pytest.raises(UnicodeDecodeError):
        _status._replace(UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"))


# locks


def test_a_lock_that_is_a_folder(tmp_path, capsys):
    (tmp_path / ".lock").mkdir()
    status, _, error = call(capsys, "verify", FAST, "--out", tmp_path, "--jobs", "1")
    assert status == 2
    assert "the lock" in error
    assert "cannot be opened" in error
    assert len(error.strip().splitlines()) == 1
    with pytest.raises(store.StoreError, match="cannot be opened"), store.folder_lock(tmp_path):
        pass


def test_the_lock_of_another_user():
    """Root may open every file, so that the test gives up its rights for the moment of the lock."""
    with store.folder_lock(tempfile.gettempdir()):  # imports what the lock needs
        pass
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        (folder / ".lock").write_text("")
        (folder / ".lock").chmod(0o600 if os.geteuid() == 0 else 0)
        own = os.geteuid()
        if own == 0:
            os.seteuid(65534)
        try:
            denied = pytest.raises(store.StoreError, match=r"cannot be opened \(Permission denied\)")
            with denied as caught, store.folder_lock(folder):
                pass
        finally:
            os.seteuid(own)
        assert not isinstance(caught.value, store.FolderLockedError)
    finally:
        shutil.rmtree(folder)


# specifications


def sweep_call(capsys, tmp_path, text: str | bytes, *more: object):
    """Return (status, stdout, stderr) of `undertow sweep run` on a file, with the output in tmp_path/out."""
    (tmp_path / "s.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "own.py").write_text("def f(key, *, a: float = 0.0):\n    return {'x': a}\n")
    return call(capsys, "sweep", "run", tmp_path / "s.toml", "--out", tmp_path / "out", *more)


GRID = "\n[axes]\na = {linear = [1, 2, 2]}\n"
MANY = 'experiment = "own.py:f"\n[axes]\na = '
SPECS = {
    "text that is not UTF-8": (b'experiment = "gr\xf6sse"', "not TOML, which is UTF-8 text (byte 16 is not)"),
    "nested too deeply": (b"a = " + b"[" * 100_000, "not TOML"),
    "a thousand million points": (f"{MANY}{{linear=[1,2,1000000000]}}", "at most 1,000,000"),
    "as many, spaced in logarithms": (f"{MANY}{{log=[1,2,1000000000]}}", "at most 1,000,000"),
    "as many, drawn at random": (f"{MANY}{{random={{a={{linear=[0, 1]}}}}, count=1000000000}}", "at most 1,000,000"),
    "a name that is too long": (f'experiment = "own.py:f"\n[axes]\n{"a" * 300} = [1, 2]', "a name of 300 characters"),
    "a name with a path": ('experiment = "own.py:f"\n[axes]\n"../../b" = [1, 2]', "cannot be a name in the results"),
    "an experiment with a path": (f'experiment = "own.py:../../../../tmp/x"{GRID}', "is not the name of a function"),
    "a file that is not there": (f'experiment = "nowhere.py:f"{GRID}', "cannot be read"),
    "a file name that is too long": (f'experiment = "{"b" * 300}.py:f"{GRID}', "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_specifications_that_cannot_be_run(capsys, tmp_path, spec):
    text, message = SPECS[spec]
    status, _, error = sweep_call(capsys, tmp_path, text)
    assert status == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["tls://127.0.0.1:9", "", "nonsense://x", "tcp://127.0.0.1:9"])
def test_addresses_without_a_scheduler(address):
    with pytest.raises(WorkersUnreachableError, match=r"no certificates|no Dask scheduler|give the address") as caught:
        Cluster(address, patience=0.3)
    assert ("certificates" in str(caught.value)) == address.startswith("tls")


def test_a_wrong_address_leaves_no_folder(capsys, tmp_path):
    status, _, error = sweep_call(capsys, tmp_path, f'experiment = "own.py:f"{GRID}', "--on", "tls://127.0.0.1:9")
    assert status == 2
    assert "has no certificates for this address" in error
    assert not (tmp_path / "out").exists()


def job(tmp_path, experiment: str) -> Job:
    spec = as_spec(experiment, {"a": [1.0, 2.0]})
    return Job(spec, experiment, "", folder_of(spec, "", tmp_path / "new" / "out"))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", ["sensing-factor-tow", "own.py:nothing", "own.py:f"])
def test_a_typo_in_the_name_of_an_experiment_leaves_no_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("f = 3\n")
    monkeypatch.setattr("undertow.execution.sweeps.worker.digest_of", lambda experiment: "")
    with pytest.raises(SpecError, match=r"there is no experiment|has no function"):
        drive.run(job(tmp_path, name), InProcess)
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"own.py"}  # Python may keep bytecode


def test_a_folder_that_was_there_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new" / "out").mkdir(parents=True)
    with pytest.raises(SpecError):
        drive.run(job(tmp_path, "sensing-factor-tow"), InProcess)
    assert list((tmp_path / "new").rglob("*")) == [tmp_path / "new" / "out"]


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../../b", "..", "é" * 300, "<lambda>", "a\x00b"])
def test_the_folder_of_a_sweep_is_inside_the_output_folder(tmp_path, name):
    """Python lets a function have any name."""
    spec = as_spec(name, {"a": [1.0, 2.0]})
    folder = folder_of(spec, "", tmp_path)
    assert folder.parent == tmp_path
    assert folder.resolve().parent == tmp_path.resolve()
    folder.mkdir()


def test_an_output_folder_with_a_name_that_is_too_long(capsys, tmp_path):
    status, _, error = call(capsys, "verify", FAST, "--out", tmp_path / ("o" * 300), "--jobs", "1")
    assert status == 2
    assert error.endswith("File name too long.\n")


# code of the user


EXITS = """
import sys

def problem():
    sys.exit("enough")

def f(key, *, a: float = 0.0):
    sys.exit(3)
"""


@pytest.mark.usefixtures("as_a_user")
def test_sys_exit_in_a_file_of_the_user(capsys, tmp_path):
    (tmp_path / "top.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "own.py").write_text(EXITS)
    cases = {"top.py:problem": "sys.exit(0)", "own.py:problem": "sys.exit('enough')"}
    for target, message in cases.items():
        status, _, error = call(capsys, "analyze", tmp_path / target, "--out", tmp_path / "out")
        assert status == 2
        assert f"cannot be run: it calls {message}" in error
        assert len(error.strip().splitlines()) == 1
    with pytest.raises(SpecError, match=r"top\.py cannot be run: it calls sys\.exit\(0\)"):
        find(f"{tmp_path / 'top.py'}:f", "smoke")
    with pytest.raises(SpecError, match=r"f: it calls sys\.exit\(3\)"):
        find(f"{tmp_path / 'own.py'}:f", "smoke").call(None, {})


def test_sys_exit_later_on(capsys, monkeypatch):
    from undertow import cli

    monkeypatch.setattr(cli, "ACTIONS", dict.fromkeys(cli.ACTIONS, lambda command: sys.exit(0)))
    status, _, error = call(capsys, "errata")
    assert status == 2
    assert "your code ended the command: it calls sys.exit(0)" in error


def test_an_error_of_the_system_is_a_sentence(capsys, monkeypatch):
    from undertow import cli

    def fail(command):
        raise OSError(5, "Input/output error", "/some/file")

    monkeypatch.setattr(cli, "ACTIONS", dict.fromkeys(cli.ACTIONS, fail))
    assert call(capsys, "errata") == (2, "", "undertow: /some/file: Input/output error.\n")


def test_a_reader_that_ends_early():
    """`undertow errata | head -1` prints no traceback."""
    code = "from undertow.cli import main; main(['errata'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_a_result_that_is_a_link(verified, tmp_path, capsys):
    """The folder of another run, linked instead of copied."""
    out, _ = verified
    (tmp_path / "results.json").symlink_to(out / "results.json")
    (tmp_path / "claims").symlink_to(out / "claims")
    status, printed, _ = call(capsys, "report", tmp_path)
    assert status == 0
    assert printed.strip() == str(tmp_path / "report.html")
