"""The source executes no data: no pickle, no eval, no shell; input is not checked by `assert`; text is UTF-8."""

import ast
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
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            if (function.value.id, function.attr) in METHODS:
                found.append(f"{function.value.id}.{function.attr}")
        for keyword in call.keywords:
            if keyword.arg in ("allow_pickle", "shell", "trust_remote_code") and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                found.append(f"{keyword.arg}=")
    return found


@pytest.mark.parametrize("name", TREES)
def test_no_module_executes_data(name):
    assert unsafe(TREES[name]) == []


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


@pytest.mark.parametrize("name", TREES)
def test_no_assertion_checks_a_value(name):
    """`python -O` removes assertions; a value is checked with `if` and `raise`."""
    wrong = [node.lineno for node in ast.walk(TREES[name]) if isinstance(node, ast.Assert) and not narrows(node.test)]
    assert wrong == []


@pytest.mark.parametrize("name", TREES)
def test_text_is_read_and_written_as_utf_8(name):
    """Without an encoding, Python takes that of the terminal's locale."""
    wrong = []
    for call in calls(TREES[name]):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        plain = method == "open" and isinstance(call.func, ast.Name)
        mode = call.args[1] if plain and len(call.args) > 1 else None
        binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
        if (method in ("read_text", "write_text") or plain) and not binary:
            of_kernel = "MEMORY.read_text" in ast.unparse(call) or "/proc" in ast.unparse(call)
            inside = ast.unparse(call) in ("limit.read_text()", "used.read_text()")
            if not of_kernel and not inside and "encoding" not in {keyword.arg for keyword in call.keywords}:
                wrong.append(ast.unparse(call))
    assert wrong == []
