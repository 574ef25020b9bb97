"""The source executes no data: no pickle, no eval, no shell; input is not checked by `assert`; text is UTF-8."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import undertow

SOURCE = Path(undertow.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_bytes()) for path in FILES}

MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop"}
"""Modules that turn data into code or into objects of any type."""
BUILTINS = {"eval", "exec", "compile", "__import__"}
METHODS = {("torch", "load"), ("yaml", "load"), ("os", "system"), ("os", "popen"), ("pandas", "read_pickle")}


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def unsafe(tree: ast.AST) -> list[str]:
    """Return the imports and calls of a module that could execute data."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(str(node.module))
    for call in calls(tree):
        function = call.func
        if isinstance(function, ast.Name) and function.id in BUILTINS:
            found.append(function.id)
        if isinstance(function, ast.Attribute) and tuple(ast.unparse(function).split(".")) in METHODS:
            found.append(ast.unparse(function))
        for keyword in call.keywords:
            if keyword.arg in ("allow_pickle", "shell", "trust_remote_code") and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                found.append(f"{keyword.arg}=")
    return found


def test_no_module_executes_data():
    assert {name: unsafe(tree) for name, tree in TREES.items() if unsafe(tree)} == {}


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from marshal import loads", "import a.b, dill", "eval('1')", "exec(text)", "torch.load(path)",
     "np.load(path, allow_pickle=True)", "run(x, shell=True)", "AutoConfig.of(x, trust_remote_code=flag)"],
)  # fmt: skip
def test_what_executes_data_is_found(code):
    assert unsafe(ast.parse(code))


def narrows(test: ast.expr) -> bool:
    """Return whether an assertion only tells a type checker a type: `x is not None`, `isinstance(x, T)`."""
    if isinstance(test, ast.BoolOp):
        return all(map(narrows, test.values))
    if isinstance(test, ast.Compare):
        return all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"


def test_no_assertion_checks_a_value():
    """`python -O` removes assertions; a value is checked with `if` and `raise`."""
    asserts = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert asserts
    assert [(name, node.lineno) for name, node in asserts if not narrows(node.test)] == []


KERNEL = {"MEMORY.read_text()", "limit.read_text()", "used.read_text()", "Path('/proc/self/status').read_text()"}
"""Files of the kernel, which are ASCII."""


def without_encoding(call: ast.Call) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    opens = method == "open" and isinstance(call.func, ast.Name)
    if method not in ("read_text", "write_text") and not opens:
        return False
    binary = opens and len(call.args) > 1 and "b" in ast.unparse(call.args[1])
    return not binary and "encoding" not in {keyword.arg for keyword in call.keywords}


def test_text_is_read_and_written_as_utf_8():
    """Without an encoding, Python takes that of the terminal's locale."""
    wrong = [(name, ast.unparse(c)) for name, tree in TREES.items() for c in calls(tree) if without_encoding(c)]
    assert [call for call in wrong if call[1] not in KERNEL] == []


# the packages that `make setup` installs

ROOT = Path(__file__).parent.parent
LOCKED = sorted((ROOT / "requirements").glob("*.txt"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(path: Path) -> dict[str, tuple[str, int]]:
    """Return the version and the number of hashes of every package of a file."""
    text = path.read_text().partition("\n")[2].replace("\\\n", " ")
    packages = {}
    for line in text.splitlines():
        name, _, rest = line.partition("==")
        packages[normal(name)] = rest.split()[0], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", rest))
    return packages


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.name)
def test_locked_packages_have_hashes_and_the_versions_of_the_constraints(path):
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {normal(name): version for name, _, version in (line.partition("==") for line in lines)}
    packages = locked(path)
    assert len(packages) > 20
    assert {name: version for name, (version, _) in packages.items()}.items() <= pinned.items()
    assert [name for name, (_, hashes) in packages.items() if not hashes] == []
    assert "://" not in path.read_text()  # no index of the machine that wrote it


def test_every_requirement_of_the_gate_is_locked():
    """`make lock` after a change of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    name_of = lambda requirement: normal(re.match(r"[\w.-]+", requirement)[0])
    base = set(locked(ROOT / "requirements" / "dev.txt"))
    for extra in ("dev", "torch-test", "docs"):
        wanted = {name_of(requirement) for requirement in [*project["dependencies"], *extras[extra]]} - {"torch"}
        assert wanted <= base | set(locked(ROOT / "requirements" / f"{extra}.txt")), extra
