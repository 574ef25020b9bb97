"""Own code beside the library that offers the same: results, errors and times. docs/design.md draws the conclusions."""

import functools
import inspect
import os
import pickle
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import griffe
import jax
import jax.flatten_util
import jax.numpy as jnp
import joblib
import lineax
import numpy as np
import optimistix
import scipy.linalg
from matfree import decomp, eig, stochtrace
from sklearn.utils import check_array

import undertow as ut
from benchmarks.harness import in_words, interleaved, save
from docs.entries import Entries
from docs.reference import PAGES, names
from undertow import _trees as trees
from undertow import spectral
from undertow.execution.sweeps.digest import digest_of
from undertow.grouped.data import check_rows
from undertow.manifold.geometry import Frame, interpolates
from undertow.manifold.minimum import _closer, _frame, frame_of_minimum
from undertow.manifold.paths import FLATTEST_OF_FLOW, Recorder, _velocity, flow
from undertow.papers.zero_loss.models import curves
from undertow.papers.zero_loss.models.linear import LinearModel
from undertow.papers.zero_loss.models.tanh_net import TanhNet
from undertow.symmetry.approximate import _minimum
from undertow.symmetry.null_space import null_space

Facts = dict[str, Any]


def ready(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(function(*arguments))


# Lanczos iteration and stochastic traces against matfree


def hessian_product(problem: ut.AbstractProblem, params: Any) -> Callable:
    return lambda v: jax.jvp(problem.gradient, (params,), (v,))[1]


def own_largest(product: Callable, start: jax.Array, steps: int) -> jax.Array:
    """The largest eigenvalue by `spectral.lanczos`."""
    return spectral.lanczos(product, start, steps)[0][-1]


def hessenberg_largest(product: Callable, start: jax.Array, steps: int) -> jax.Array:
    """`own_largest` with the loop of matfree; the end at an invariant subspace is not handled."""
    small = decomp.hessenberg(steps, reortho="full", custom_vjp=False)(product, start).J_small
    diagonal, beside = jnp.diag(small), jnp.diag(small, -1)
    return jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(beside, 1) + jnp.diag(beside, -1))[-1]


def partial_largest(product: Callable, start: jax.Array, steps: int) -> jax.Array:
    """The largest eigenvalue by matfree alone."""
    return eig.eigh_partial(decomp.tridiag_sym(steps, custom_vjp=False))(product, start)[0][-1]


def lanczos() -> Facts:
    """The eigenvalue 2 of 2 I, where the iteration reaches an invariant subspace at once; Hessians of networks."""
    methods = {"own": own_largest, "hessenberg": hessenberg_largest, "eigh_partial": partial_largest}
    start = jax.random.normal(jax.random.key(0), (200,))
    facts: Facts = {f"largest eigenvalue of 2 I, {name}": float(method(lambda v: 2 * v, start, 20))
                    for name, method in methods.items()}  # fmt: skip
    for inputs, hidden in ((9, 20), (99, 200)):
        net = TanhNet.draw(jax.random.key(0), inputs=inputs, hidden=hidden, n=20)
        product, (flat, unravel) = hessian_product(net.problem, net.params), jax.flatten_util.ravel_pytree(net.params)
        start = jax.random.normal(jax.random.key(1), flat.shape)
        apply = lambda v, product=product, unravel=unravel: trees.ravel(product(unravel(v)))
        compiled = {name: jax.jit(lambda v, m=m, a=apply: m(a, v, 40)) for name, m in methods.items()}
        size = f"D = {flat.size:,}"
        times = interleaved({name: (ready(f, start), 1) for name, f in compiled.items()})
        facts |= {f"seconds, Hessian of {size}, {name}": value for name, value in times.items()}
        ends = [float(f(start)) for f in compiled.values()]
        facts[f"relative difference of eigenvalues, {size}"] = float(np.ptp(ends) / ends[0])
    return facts


def traces() -> Facts:
    """The memory of 64 probes of the trace of a Hessian: one after another, and in one batch by matfree."""
    net = TanhNet.draw(jax.random.key(0), inputs=99, hidden=200, n=100)
    product = hessian_product(net.problem, net.params)
    draw = lambda key: spectral.random_signs(key, net.params)
    own = lambda key: spectral.quadratic_forms(draw, product, jax.random.split(key, 64))
    sampler = stochtrace.sampler_signs(net.params, num=64)
    estimate = stochtrace.estimator_monte_carlo_mean_and_sem(stochtrace.monte_carlo_trace(), sampler)
    methods = {"own": jax.jit(own), "matfree": jax.jit(lambda key: estimate(product, key))}
    key = jax.random.key(2)
    memory = {name: f.lower(key).compile().memory_analysis().temp_size_in_bytes / 2**20 for name, f in methods.items()}
    times = interleaved({name: (ready(f, key), 1) for name, f in methods.items()})
    return {f"MiB of 64 probes at D = 20,000, {name}": value for name, value in memory.items()} | {
        f"seconds of 64 probes at D = 20,000, {name}": value for name, value in times.items()
    }


# the flow on the manifold, with and without a retraction after each step of diffrax


@eqx.filter_jit
def plain_flow(
    noise: ut.AbstractNoise, frame: Frame, recorder: Recorder, tolerance: jax.Array
) -> tuple[jax.Array, Any, jax.Array]:
    """`flow` with one record at slow time 4, without retractions."""
    drift, back = _velocity(noise, frame, 0.0, recorder)
    x = back(frame.point)
    first = 0.01 * (1 + jnp.linalg.norm(x)) / (jnp.linalg.norm(drift(x)) + 1e-12)
    path = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, _: drift(y)), diffrax.Tsit5(), 0.0, 4.0, first, x, max_steps=10_000,
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance), adjoint=diffrax.ForwardMode(),
    )  # fmt: skip
    end = path.ys[-1]
    return end, recorder(x, FLATTEST_OF_FLOW)[0], recorder(end, FLATTEST_OF_FLOW)[0]["distance"]


def limiting_flow() -> Facts:
    """The label-noise flow of the linear model with d = 100 to slow time 4, at the same tolerances."""
    model = LinearModel.draw(jax.random.key(0), d=100, n=40, sparsity=5, dtype=jnp.float64)
    noise = ut.LabelNoise(model.problem, 1.0)
    frame = frame_of_minimum("benchmark", model.problem, model.settle(model.start(1.0)))
    recorder = Recorder({}, model.problem, jnp.max(frame.curvature), int(frame.rank), frame.least_squares,
                        frame.unravel)  # fmt: skip

    def retracted(tolerance: jax.Array) -> tuple[jax.Array, Any, jax.Array]:
        end, records, _ = flow(noise, frame, jnp.array([4.0]), 0.0, recorder, tolerance)
        return end, records, records["distance"][-1]

    methods = {
        "with retractions": retracted,
        "diffrax alone": lambda tolerance: plain_flow(noise, frame, recorder, tolerance),
    }
    exact = retracted(jnp.asarray(1e-12))[0]
    facts = {}
    for tolerance in (1e-6, 1e-9):
        given = jnp.asarray(tolerance)
        times = interleaved({name: (ready(f, given), 1) for name, f in methods.items()}, rounds=15)
        for name, method in methods.items():
            end, _, distance = method(given)
            error = jnp.linalg.norm(end - exact) / jnp.linalg.norm(exact)
            facts[f"tolerance {tolerance:.0e}, {name}"] = {
                "seconds": times[name], "relative error": float(error), "distance to the manifold": float(distance),
            }  # fmt: skip
    return facts


# Newton steps against optimistix


def broken_net(key: jax.Array) -> tuple[ut.Problem, dict[str, jax.Array]]:
    """Two factors on data, with a term that has no symmetry, and a start."""
    keys = jax.random.split(key, 4)
    x, y = jax.random.normal(keys[0], (20, 3)), jax.random.normal(keys[1], (20, 2))
    params = {"U": jax.random.normal(keys[2], (2, 2)), "W": jax.random.normal(keys[3], (2, 3))}

    def loss(p: dict[str, jax.Array], sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        flat = trees.ravel(p)
        breaking = jnp.sum(flat**4) / 4 + jnp.sum(jnp.arange(1.0, 11.0) * flat**2) / 20 - jnp.sum(jnp.sin(flat))
        return jnp.sum((p["U"] @ p["W"] @ sample[0] - sample[1]) ** 2) + breaking

    return ut.Problem(loss, (x, y)), params


def isolated_minima(starts: int = 40) -> Facts:
    """Critical points that each method reaches from random starts, by the sign of their least curvature."""
    problem, like = broken_net(jax.random.key(3))
    flat, unravel = jax.flatten_util.ravel_pytree(like)
    loss = lambda v, _=None: problem.loss(unravel(v))
    gradient = lambda v, _=None: jax.grad(loss)(v)
    bfgs, newton = optimistix.BFGS(1e-12, 1e-12), optimistix.Newton(1e-12, 1e-12)
    methods = {
        "own": jax.jit(lambda v: trees.ravel(_minimum(ut.Minibatch(problem, 1), unravel(v))[0])),
        "optimistix BFGS": jax.jit(
            lambda v: optimistix.minimise(loss, bfgs, v, max_steps=1000, throw=False).value),
        "optimistix Newton": jax.jit(
            lambda v: optimistix.root_find(gradient, newton, v, max_steps=50, throw=False).value),
    }  # fmt: skip

    @jax.jit
    def judge(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = jnp.linalg.eigvalsh(jax.hessian(loss)(v))
        return jnp.linalg.norm(gradient(v)) / (jnp.max(jnp.abs(values)) * jnp.linalg.norm(v)), values[0]

    begins = [jax.random.normal(jax.random.key(k), flat.shape) for k in range(starts)]
    times = interleaved({name: (ready(f, begins[0]), 1) for name, f in methods.items()})
    facts = {}
    for name, method in methods.items():
        judged = np.array([[float(x) for x in judge(method(v))] for v in begins])
        arrived = judged[:, 0] <= np.finfo(float).eps ** 0.5
        facts[name] = {
            "seconds": times[name],
            "starts": starts,
            "minima": int(np.sum(arrived & (judged[:, 1] > 0))),
            "saddles": int(np.sum(arrived & (judged[:, 1] <= 0))),
            "not converged": int(np.sum(~arrived)),
            "relative gradient, median": float(np.nanmedian(judged[:, 0])),
        }
    return facts


def points_near_a_manifold(starts: int = 20, distance: float = 1e-5) -> Facts:
    """The motion along an ellipse of minimisers, over the distance to it, that a step back to it causes."""
    problem = curves.ellipse()
    newton = optimistix.Newton(1e-14, 1e-14, linear_solver=lineax.AutoLinearSolver(well_posed=False))
    gradient = lambda v, _: problem.gradient(v)
    solve = jax.jit(lambda v: optimistix.root_find(gradient, newton, v, max_steps=20, throw=False).value)
    along = {"own": [], "optimistix Newton": []}
    for k in range(starts):
        angle = 2 * np.pi * (k + 0.5) / starts
        on = jnp.array([2 * np.cos(angle), np.sin(angle)])
        tangent = jnp.array([-2 * np.sin(angle), np.cos(angle)])
        tangent = tangent / jnp.linalg.norm(tangent)
        start = on + distance * jnp.array([tangent[1], -tangent[0]])
        ends = {
            "own": _closer("benchmark", problem, _frame(problem, start, interpolates(problem, start))).point,
            "optimistix Newton": solve(start),
        }
        for name, end in ends.items():
            along[name].append(abs(float(tangent @ (end - start))) / distance)
    return {f"motion along the manifold, {name}, largest": max(values) for name, values in along.items()}


# small functions of NumPy against SciPy, scikit-learn and joblib


def null_spaces() -> Facts:
    """x0 = x1 and x2 = x3, with columns that differ by 1e7; and a matrix of rounding errors."""
    rows = np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1e7, -1e7]])
    errors = 1e-17 * np.random.default_rng(0).normal(size=(6, 4))
    own, library = null_space(rows, np.array([1.0, 1.0, 1e7, 1e7]), 1e-12), scipy.linalg.null_space(rows).T
    return {
        "entries that are not zero, own": int(np.sum(np.abs(own) > 1e-12)),
        "entries that are not zero, SciPy": int(np.sum(np.abs(library) > 1e-12)),
        "null space of rounding errors in 4 columns, own": len(null_space(errors, np.ones(4), 1e-12)),
        "null space of rounding errors in 4 columns, SciPy": scipy.linalg.null_space(errors).shape[1],
    }


def answer(function: Callable[[], Any]) -> str:
    try:
        return f"accepted: {function()}"
    except (TypeError, ValueError, pickle.PicklingError) as error:
        return str(error).split("\n")[0]


def row_checks() -> Facts:
    """The answers to a missing value in the second column, and to a masked entry."""
    missing = np.array([[1.0, 2.0], [3.0, np.nan]])
    masked = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, False], [False, True]])
    facts = {}
    for name, rows in (("missing value", missing), ("masked entry", masked)):
        facts[f"{name}, own"] = answer(lambda rows=rows: check_rows("fit", rows)[0].tolist())
        facts[f"{name}, scikit-learn"] = answer(lambda rows=rows: check_array(rows).tolist())
    return facts


CHANGES = {
    "a constant of the function": ("", "2 * a", ("2 *", "3 *")),
    "a number of its module": ("k = 2.0\n", "k * a", ("2.0", "3.0")),
    "a helper": ("def helper(a):\n    return 2 * a\n", "helper(a)", ("2 *", "3 *")),
    "an array": ("table = np.array([3.0, 2.0])\n", "a * table[0]", ("3.0", "3.5")),
    "a compiled helper": ("helper = jax.jit(lambda a: 2 * a)\n", "helper(a)", ("2 *", "3 *")),
    "a random key": ("start = jax.random.key(0)\n", "jax.random.normal(start)", ("key(0)", "key(1)")),
}


VALUES = {
    "a lambda": lambda a: 2 * a,
    "a partial application": functools.partial(lambda a, b: a * b, 2),
    "a compiled function": jax.jit(lambda a: 2 * a),
    "a gradient": jax.grad(lambda a: 2 * a),
    "a function of jax.numpy": jnp.sin,
    "an array": np.arange(3.0),
}


def hashes() -> Facts:
    """Changes of what an experiment computes that change its hash; and values that cannot be hashed."""
    noticed = dict.fromkeys(("own", "joblib"), 0)
    for around, uses, change in CHANGES.values():
        source = f"{around}def f(key, *, a: float = 1.0):\n    return {{'x': {uses}}}\n"
        both = [experiment_hashes(text) for text in (source, source.replace(*change))]
        noticed = {name: count + (both[0][name] != both[1][name]) for name, count in noticed.items()}
    refused = [name for name, value in VALUES.items() if "pickle" in answer(lambda value=value: joblib.hash(value))]
    return {f"changes noticed of {len(CHANGES)}, {name}": count for name, count in noticed.items()} | {
        "values that joblib cannot hash": ", ".join(refused),
        "hashes of one set of words in 8 processes, joblib": len({set_hash(seed) for seed in range(8)}),
    }


def experiment_hashes(source: str) -> dict[str, str]:
    """Both hashes of the function f of a module with this source."""
    module = types.ModuleType("experiment")
    vars(module).update(jax=jax, np=np)
    exec(source, vars(module))
    sys.modules["experiment"] = module  # joblib looks functions up by name
    return {"own": digest_of(module.f), "joblib": joblib.hash(module.f)}


def set_hash(seed: int) -> str:
    program = "import joblib; print(joblib.hash({'a', 'b', ('c', frozenset('def'))}))"
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout


def reference_entries() -> Facts:
    """Entries of the reference, and the part of them that griffe makes only with the extension `docs.entries`."""
    paths = [path for page in PAGES.values() for _, path in names(page)]
    plain, extended = (
        [_entry(package, path.removeprefix("undertow.")) for path in paths]
        for package in (_package(), _package(Entries))
    )
    pages = "\n".join(obj.docstring.value for obj in extended if obj.docstring)
    return {
        "entries": len(paths),
        "entries without a signature, griffe": sum(not _has_signature(obj) for obj in plain),
        "entries without a signature, with the extension": sum(not _has_signature(obj) for obj in extended),
        "typeset subscripts and superscripts": len(re.findall("<su[bp]>", pages)),
        "rows in tables of fields": len(re.findall(r"^\| `\w+` \|", pages, flags=re.MULTILINE)),
    }


def _package(*extensions: type) -> griffe.Module:
    loader = griffe.GriffeLoader(
        extensions=griffe.load_extensions("dataclasses", *extensions),
        search_paths=[Path(ut.__file__).parent.parent],
        allow_inspection=False,
    )
    package = loader.load("undertow")
    loader.resolve_aliases(implicit=False, external=False)
    return package


def _entry(package: griffe.Module, path: str) -> griffe.Object:
    return package[path].final_target if package[path].is_alias else package[path]


def _has_signature(obj: griffe.Object) -> bool:
    return not obj.is_class or "__init__" in obj.all_members


PARTS = (
    lanczos,
    traces,
    limiting_flow,
    isolated_minima,
    points_near_a_manifold,
    null_spaces,
    row_checks,
    hashes,
    reference_entries,
)


def main() -> list[tuple[str, str, str]]:
    single = {lanczos, traces}
    facts: dict[str, Facts] = {}
    for part in PARTS:
        jax.config.update("jax_enable_x64", part not in single)
        facts[part.__name__] = part()
    save("libraries", facts)
    return [row for part in PARTS for row in rows(part, facts[part.__name__])]


def rows(part: Callable[[], Facts], facts: Facts) -> list[tuple[str, str, str]]:
    """The rows of one comparison; the first has its description as a remark."""
    flat = {
        (f"{name}, {inner}" if inner else name): value
        for name, entry in facts.items()
        for inner, value in (entry.items() if isinstance(entry, dict) else (("", entry),))
    }
    texts = [in_words(v) if "seconds" in n else v if isinstance(v, str) else f"{v:.3g}" for n, v in flat.items()]
    remarks = [(inspect.getdoc(part) or "").split("\n")[0]] + [""] * len(flat)
    return [(f"{part.__name__}: {name}", text, remark)
            for name, text, remark in zip(flat, texts, remarks, strict=False)]  # fmt: skip
