"""Symmetries found from gradients: all of them, and no false one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry import search, selection
from undertow.symmetry.evidence import gather_evidence
from undertow.symmetry.generators import DoubleRotation, Rescaling, Scaling
from undertow.symmetry.null_space import echelon


def total(found, params):
    return sum(symmetry.dimension(params) for symmetry in found)


@pytest.mark.parametrize("name", nets.ARCHITECTURES)
def test_the_right_count_on_small_architectures(name, x64):
    loss, params, count = nets.ARCHITECTURES[name]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    problem = ut.Problem(loss, jax.tree.map(lambda x: x.astype(jnp.float64), nets.data()))
    found = ut.find_symmetries(problem, params, key=1)
    assert total(found, params) == count, [s.describe(params) for s in found]


def test_kinds_have_their_names(x64):
    problem = lambda name: ut.Problem(nets.ARCHITECTURES[name][0], nets.data())
    params = lambda name: nets.ARCHITECTURES[name][1]
    (pair,) = ut.find_symmetries(problem("two-layer linear"), params("two-layer linear"))
    assert isinstance(pair, DoubleRotation)
    assert pair.describe(params("two-layer linear")) == "GL(2) between U and W"
    (neurons,) = ut.find_symmetries(problem("ReLU with biases"), params("ReLU with biases"))
    assert isinstance(neurons, Rescaling)
    assert neurons.describe(params("ReLU with biases")) == "rescaling of 3 neurons, b, i against o"
    (together,) = ut.find_symmetries(problem("net A"), params("net A"))
    assert isinstance(together, Scaling)


@pytest.mark.slow
def test_single_precision_finds_the_same():
    for name in ("two-layer linear", "ReLU with biases", "tanh", "net B"):
        loss, params, count = nets.ARCHITECTURES[name]
        assert total(ut.find_symmetries(ut.Problem(loss, nets.data()), params), params) == count


def attention(p, s):
    x, y = s
    heads = lambda z: z.reshape(5, 2, 3).transpose(1, 0, 2)
    q, k, v = (heads(x @ p[name].T) for name in "qkv")
    mixed = jax.nn.softmax(q @ k.transpose(0, 2, 1), axis=-1) @ v
    out = x + mixed.transpose(1, 0, 2).reshape(5, 6) @ p["o"].T
    out = out + (jax.nn.swish(out @ p["gate"].T) * (out @ p["up"].T)) @ p["down"].T
    return nets.square(jnp.mean(out, axis=0)[:2], y)


def test_heads_and_gates_of_a_transformer_layer(x64):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"q": (6, 6), "k": (6, 6), "v": (6, 6), "o": (6, 6), "gate": (8, 6), "up": (8, 6), "down": (6, 8)}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) / 2, nets.weights(**shapes))
    data = (jax.random.normal(keys[0], (40, 5, 6), jnp.float64), jax.random.normal(keys[1], (40, 2), jnp.float64))
    problem = ut.Problem(attention, data)
    found = ut.find_symmetries(problem, params)
    rotations = [s for s in found if isinstance(s, DoubleRotation)]
    neurons = [s for s in found if isinstance(s, Rescaling)]
    assert [s.dimension(params) for s in rotations] == [6] * 4  # GL(3) for two heads, in QK and in OV
    assert [s.dimension(params) for s in neurons] == [8]
    assert len(found) == 5
    assert rotations[0].describe(params) == "GL(3) between k[0:3] and q[0:3]"
    for symmetry in found:
        assert symmetry.check(problem, params, jax.random.key(0)).holds


def test_a_wide_network_by_structure():
    params = nets.relu_params(40, 30, inputs=10, outputs=3)
    keys = jax.random.split(jax.random.key(0))
    data = (jax.random.normal(keys[0], (100, 10)), jax.random.normal(keys[1], (100, 3)))
    problem = ut.Problem(nets.relu_net, data)
    found = ut.find_symmetries(problem, params)
    assert [type(s) for s in found] == [Rescaling, Rescaling]
    assert sorted(s.dimension(params) for s in found) == [30, 40]
    assert total(ut.find_symmetries(ut.Problem(tanh_net, data), params), params) == 0


def tanh_net(p, s):
    hidden = jnp.tanh(p["w2"] @ jnp.tanh(p["w1"] @ s[0] + p["b1"]) + p["b2"])
    return nets.square(p["w3"] @ hidden, s[1])


def test_a_population_can_be_searched():
    population = ut.Population(nets.linear_net, lambda key: (jax.random.normal(key, (2,)), jnp.ones(2)))
    params = nets.weights(U=(2, 2), W=(2, 2))
    assert [s.dimension(params) for s in ut.find_symmetries(population, params)] == [3]


BAD = {
    "no samples": (lambda: ut.find_symmetries(1, jnp.ones(2)), TypeError, "no samples to search on"),
    "no gradient": (
        lambda: ut.find_symmetries(ut.Problem(lambda p, s: 0 * jnp.sum(p), jnp.ones(3)), jnp.ones(2)),
        ValueError, "all gradients near params vanish",
    ),
    "not a number": (
        lambda: ut.find_symmetries(ut.Problem(lambda p, s: jnp.sum(p) * jnp.nan, jnp.ones(3)), jnp.ones(2)),
        ValueError, "no gradient near params is finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_explained(what, as_a_user):
    call, kind, sentence = BAD[what]
    with pytest.raises(kind, match=sentence):
        call()


@pytest.mark.slow
def test_the_seed_decides_nothing(x64):
    loss, params, count = nets.ARCHITECTURES["SwiGLU"]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    problem = ut.Problem(loss, jax.tree.map(lambda x: x.astype(jnp.float64), nets.data()))
    for seed in range(3):
        assert total(ut.find_symmetries(problem, params, key=seed), params) == count
    assert np.isfinite(count)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_finds_what_single_does(dtype):
    """In half precision the null space of the rounded gradients has 150 to 200 dimensions."""
    loss, params, count = nets.ARCHITECTURES["ReLU with biases"]
    half = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    found = ut.find_symmetries(ut.Problem(loss, half(nets.data())), half(params))
    assert [s.describe(params) for s in found] == ["rescaling of 3 neurons, b, i against o"]
    assert total(found, params) == count
    for symmetry in found:
        assert symmetry.check(ut.Problem(loss, nets.data()), params, jax.random.key(0)).holds


def test_a_loss_that_computes_in_half_precision_is_refused():
    loss, params, count = nets.ARCHITECTURES["two-layer linear"]
    half = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
    inside = lambda p, s: loss(half(p), s).astype(jnp.float32)
    for rounded in (inside, jax.jit(inside), jax.checkpoint(inside)):
        with pytest.raises(ValueError, match="the loss computes in bfloat16"):
            ut.find_symmetries(ut.Problem(rounded, nets.data()), params)
    # data may be rounded: every sample has the symmetry, whatever its numbers
    coarse = jax.jit(lambda p, s: loss(p, half(s)))
    assert total(ut.find_symmetries(ut.Problem(coarse, nets.data()), params), params) == count


def test_a_loss_that_computes_in_single_precision_is_judged_by_that(x64):
    loss, params, count = nets.ARCHITECTURES["two-layer linear"]
    cast = lambda tree, dtype: jax.tree.map(lambda x: x.astype(dtype), tree)
    inside = lambda p, s: loss(cast(p, jnp.float32), cast(s, jnp.float32))
    found = ut.find_symmetries(ut.Problem(inside, nets.data()), cast(params, jnp.float64))
    assert total(found, params) == count


def normal(k, *shape):
    return jax.random.normal(jax.random.key(k), shape, jnp.float64)


def drawn(samples=40, inputs=6):
    return jax.random.normal(jax.random.key(5), (samples, inputs), jnp.float64)


def test_some_neurons_of_a_layer_and_a_kernel_with_three_axes(x64):
    """Neurons 0 and 2 are ReLU, neuron 1 is tanh; the outgoing weights have their index in the middle."""

    def loss(p, x):
        hidden = p["in"] @ x
        hidden = jnp.where(jnp.array([True, False, True]), jax.nn.relu(hidden), jnp.tanh(hidden))
        return jnp.sum((jnp.einsum("ahb,h->ab", p["out"], hidden) - 1) ** 2)

    params = {"in": normal(0, 3, 6), "out": normal(1, 2, 3, 3)}
    (found,) = ut.find_symmetries(ut.Problem(loss, drawn()), params)
    assert found.describe(params) == "rescaling of 2 neurons, in against out"
    moved = found.orbit(params, jnp.array([1.0, 2.0]))
    factor = jnp.exp(jnp.array([1.0, 0.0, 2.0]))
    np.testing.assert_allclose(moved["in"], params["in"] / factor[:, None], rtol=1e-12)
    np.testing.assert_allclose(moved["out"], params["out"] * factor[None, :, None], rtol=1e-12)


def test_rows_that_are_normalised_scale_one_by_one(x64):
    """Beside a vector that is normalised as a whole."""

    def loss(p, x):
        rows = p["rows"] / jnp.linalg.norm(p["rows"], axis=1, keepdims=True)
        return jnp.sum((jnp.tanh(rows @ x) - jnp.tanh(p["whole"] @ x / jnp.linalg.norm(p["whole"]))) ** 2)

    params = {"rows": normal(0, 6, 7), "whole": normal(1, 7)}
    *several, one = ut.find_symmetries(ut.Problem(loss, drawn(inputs=7)), params)
    assert len(several) == 6
    for row, symmetry in enumerate(several):
        moved = symmetry.orbit(params, 0.5)
        np.testing.assert_allclose(moved["rows"], params["rows"].at[row].multiply(jnp.exp(0.5)), rtol=1e-12)
        np.testing.assert_array_equal(moved["whole"], params["whole"])
    moved = one.orbit(params, 0.5)
    np.testing.assert_allclose(moved["whole"], params["whole"] * jnp.exp(0.5), rtol=1e-12)
    np.testing.assert_array_equal(moved["rows"], params["rows"])


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])
def test_the_unit_of_the_params_does_not_matter(unit, x64, monkeypatch):
    """GL(5) of a linear pair, beside a pair with tanh between; memory for fewer points than usual."""
    monkeypatch.setattr(search, "MEMORY", 16 * 70 * 50 + 8)
    params = {k: unit * normal(i, *s) for i, (k, s) in enumerate(
        {"U": (2, 5), "W": (5, 5), "A": (2, 5), "B": (5, 5)}.items())}  # fmt: skip

    def loss(p, x):
        p = jax.tree.map(lambda leaf: leaf / unit, p)
        return jnp.sum((p["U"] @ (p["W"] @ x) + p["A"] @ jnp.tanh(p["B"] @ x) - 1) ** 2)

    found = ut.find_symmetries(ut.Problem(loss, drawn(inputs=5)), params)
    assert [s.describe(params) for s in found] == ["GL(5) between U and W"]


def test_points_are_half_as_far_as_the_params_are_large(x64):
    params = {"large": -100 - normal(0, 5, 4), "small": 1e-3 * normal(1, 3), "zero": jnp.zeros(2)}
    loss = lambda p, x: sum(jnp.sum(leaf) for leaf in p.values()) * x[0]
    seen = gather_evidence(ut.Problem(loss, drawn()), params, jax.random.key(0), 2000)
    for leaf, at in zip(params.values(), seen.params, strict=True):
        leaf = np.asarray(leaf)
        spread = np.sqrt(np.mean((at - leaf) ** 2))
        np.testing.assert_allclose(spread, 0.5 * np.sqrt(np.mean(leaf**2)) if leaf.any() else 0.25, rtol=0.1)


def test_a_single_parameter_has_none(x64):
    problem = ut.Problem(lambda p, x: jnp.sum((p * x - 1) ** 2), drawn())
    assert ut.find_symmetries(problem, jnp.array(1.3)) == ()


def test_a_loss_of_a_subspace_beside_an_unused_matrix(x64):
    """U -> U exp(A) keeps the range of U: three symmetric A for two columns, and no scaling of U on top."""

    def loss(p, x):
        q = jnp.linalg.qr(p["U"])[0]
        return jnp.sum((x - q @ (q.T @ x)) ** 2)

    params = {"U": normal(0, 4, 2), "W": normal(1, 2, 3)}
    assert total(ut.find_symmetries(ut.Problem(loss, drawn(inputs=4)), params), params) == 3


def test_echelon_form_when_the_first_columns_are_zero():
    rows = np.array([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 2.0, 5.0]])
    np.testing.assert_allclose(echelon(rows), np.eye(4)[2:], atol=1e-12)


def test_what_comes_in_and_what_goes_out(x64):
    """Rows come in and columns go out; where one side has two leaves, that one comes in."""
    x = drawn()
    one = lambda p, x: jnp.sum((p["a"] @ jax.nn.relu(p["z"] @ x) - 1) ** 2)
    params = {"a": normal(0, 2, 5), "z": normal(1, 5, 6)}
    (found,) = ut.find_symmetries(ut.Problem(one, x), params)
    assert found.describe(params) == "rescaling of 5 neurons, z against a"
    two = lambda p, x: (p["a"] @ jax.nn.relu(p["y"] @ x[:3] + p["z"] @ x[3:]) - 1) ** 2
    params = {"a": normal(0, 5), "y": normal(1, 5, 3), "z": normal(2, 5, 3)}
    (found,) = ut.find_symmetries(ut.Problem(two, x), params)
    assert found.describe(params) == "rescaling of 5 neurons, y, z against a"


def test_one_row_is_a_piece_of_its_leaf():
    params = {"w": jnp.zeros((4, 3)), "v": jnp.zeros(2)}
    (piece,) = selection.pieces(lambda p: p["w"][2:3], params, 0)
    assert (piece.leaf, piece.axis, piece.own.tolist(), piece.other) == (1, 0, [2], None)
