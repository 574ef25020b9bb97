"""The search for symmetries from gradients returns all of them and no false one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry import search
from undertow.symmetry.generators import DoubleRotation, Rescaling, Scaling


def total(symmetries, params):
    return sum(symmetry.dimension(params) for symmetry in symmetries)


@pytest.mark.parametrize("name", nets.ARCHITECTURES)
def test_the_number_of_generators_of_small_architectures(name, x64):
    loss, params, count = nets.ARCHITECTURES[name]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    problem = ut.Problem(loss, jax.tree.map(lambda x: x.astype(jnp.float64), nets.data()))
    symmetries = ut.find_symmetries(problem, params, key=1)
    assert total(symmetries, params) == count, [s.describe(params) for s in symmetries]


def test_symmetries_are_described_by_their_kind(x64):
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
def test_single_precision_gives_the_same_symmetries():
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


def test_symmetries_of_heads_and_gates_of_a_transformer_layer(x64):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"q": (6, 6), "k": (6, 6), "v": (6, 6), "o": (6, 6), "gate": (8, 6), "up": (8, 6), "down": (6, 8)}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) / 2, nets.weights(**shapes))
    data = (jax.random.normal(keys[0], (40, 5, 6), jnp.float64), jax.random.normal(keys[1], (40, 2), jnp.float64))
    problem = ut.Problem(attention, data)
    symmetries = ut.find_symmetries(problem, params)
    rotations = [s for s in symmetries if isinstance(s, DoubleRotation)]
    neurons = [s for s in symmetries if isinstance(s, Rescaling)]
    assert [s.dimension(params) for s in rotations] == [6] * 4  # GL(3) for two heads, in QK and in OV
    assert [s.dimension(params) for s in neurons] == [8]
    assert len(symmetries) == 5
    assert rotations[0].describe(params) == "GL(3) between k[0:3] and q[0:3]"
    for symmetry in symmetries:
        assert symmetry.check(problem, params, jax.random.key(0)).holds


def test_a_wide_network_is_searched_by_structure():
    params = nets.relu_params(40, 30, inputs=10, outputs=3)
    keys = jax.random.split(jax.random.key(0))
    data = (jax.random.normal(keys[0], (100, 10)), jax.random.normal(keys[1], (100, 3)))
    problem = ut.Problem(nets.relu_net, data)
    symmetries = ut.find_symmetries(problem, params)
    assert [type(s) for s in symmetries] == [Rescaling, Rescaling]
    assert sorted(s.dimension(params) for s in symmetries) == [30, 40]
    assert total(ut.find_symmetries(ut.Problem(tanh_net, data), params), params) == 0


def tanh_net(p, s):
    hidden = jnp.tanh(p["w2"] @ jnp.tanh(p["w1"] @ s[0] + p["b1"]) + p["b2"])
    return nets.square(p["w3"] @ hidden, s[1])


def test_a_population_can_be_searched():
    population = ut.Population(nets.linear_net, lambda key: (jax.random.normal(key, (2,)), jnp.ones(2)))
    params = nets.weights(U=(2, 2), W=(2, 2))
    assert [s.dimension(params) for s in ut.find_symmetries(population, params)] == [3]


BAD = {
    "no samples": (lambda: ut.find_symmetries(1, jnp.ones(2)), TypeError, "which has samples"),
    "no gradient": (
        lambda: ut.find_symmetries(ut.Problem(lambda p, s: 0 * jnp.sum(p), jnp.ones(3)), jnp.ones(2)),
        ValueError, "all gradients near params vanish",
    ),
    "not a number": (
        lambda: ut.find_symmetries(ut.Problem(lambda p, s: jnp.sum(p) * jnp.nan, jnp.ones(3)), jnp.ones(2)),
        ValueError, "no gradient near params is finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case, as_a_user):
    call, kind, sentence = BAD[case]
    with pytest.raises(kind, match=sentence):
        call()


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_seed(x64):
    loss, params, count = nets.ARCHITECTURES["SwiGLU"]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    problem = ut.Problem(loss, jax.tree.map(lambda x: x.astype(jnp.float64), nets.data()))
    for seed in range(3):
        assert total(ut.find_symmetries(problem, params, key=seed), params) == count
    assert np.isfinite(count)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_gives_the_same_symmetries_as_single(dtype):
    """In half precision the null space of the rounded gradients has 150 to 200 dimensions."""
    loss, params, count = nets.ARCHITECTURES["ReLU with biases"]
    half = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    symmetries = ut.find_symmetries(ut.Problem(loss, half(nets.data())), half(params))
    assert [s.describe(params) for s in symmetries] == ["rescaling of 3 neurons, b, i against o"]
    assert total(symmetries, params) == count
    for symmetry in symmetries:
        assert symmetry.check(ut.Problem(loss, nets.data()), params, jax.random.key(0)).holds


def test_a_loss_that_computes_in_half_precision_raises():
    loss, params, count = nets.ARCHITECTURES["two-layer linear"]
    half = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
    inside = lambda p, s: loss(half(p), s).astype(jnp.float32)
    for rounded in (inside, jax.jit(inside), jax.checkpoint(inside)):
        with pytest.raises(ValueError, match="the loss computes in bfloat16"):
            ut.find_symmetries(ut.Problem(rounded, nets.data()), params)
    # data may be rounded: every sample has the symmetry, whatever its values
    coarse = jax.jit(lambda p, s: loss(p, half(s)))
    assert total(ut.find_symmetries(ut.Problem(coarse, nets.data()), params), params) == count


def test_a_loss_that_computes_in_single_precision_has_its_tolerance(x64):
    loss, params, count = nets.ARCHITECTURES["two-layer linear"]
    cast = lambda tree, dtype: jax.tree.map(lambda x: x.astype(dtype), tree)
    inside = lambda p, s: loss(cast(p, jnp.float32), cast(s, jnp.float32))
    symmetries = ut.find_symmetries(ut.Problem(inside, nets.data()), cast(params, jnp.float64))
    assert total(symmetries, params) == count


def normal(k, *shape):
    return jax.random.normal(jax.random.key(k), shape, jnp.float64)


def drawn(samples=40, inputs=6):
    return jax.random.normal(jax.random.key(5), (samples, inputs), jnp.float64)


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])
def test_the_search_does_not_depend_on_the_unit_of_the_params(unit, x64, monkeypatch):
    """GL(5) of a linear pair, next to a pair with tanh in between, with memory for fewer points than the default."""
    monkeypatch.setattr(search, "MEMORY", 16 * 70 * 50 + 8)
    params = {k: unit * normal(i, *s) for i, (k, s) in enumerate(
        {"U": (2, 5), "W": (5, 5), "A": (2, 5), "B": (5, 5)}.items())}  # fmt: skip

    def loss(p, x):
        p = jax.tree.map(lambda leaf: leaf / unit, p)
        return jnp.sum((p["U"] @ (p["W"] @ x) + p["A"] @ jnp.tanh(p["B"] @ x) - 1) ** 2)

    symmetries = ut.find_symmetries(ut.Problem(loss, drawn(inputs=5)), params)
    assert [s.describe(params) for s in symmetries] == ["GL(5) between U and W"]


def test_a_single_parameter_has_no_symmetry(x64):
    problem = ut.Problem(lambda p, x: jnp.sum((p * x - 1) ** 2), drawn())
    assert ut.find_symmetries(problem, jnp.array(1.3)) == ()


@pytest.mark.parametrize("size", [2, 23, 30])
def test_a_full_search_has_six_points_per_unknown_or_more(monkeypatch, size):
    """A symmetric matrix of n rows has n (n + 1)/2 unknowns."""

    class SearchedError(Exception):
        pass

    def evidence(problem, params, key, points):
        raise SearchedError(points)

    monkeypatch.setattr(search, "gather_evidence", evidence)
    problem = ut.Problem(lambda p, x: jnp.sum(p) * x, jnp.ones(3))
    with pytest.raises(SearchedError) as caught:
        ut.find_symmetries(problem, jnp.ones(size))
    assert caught.value.args[0] >= 3 * size * (size + 1)


@pytest.mark.slow  # the number of points is tested above
def test_a_full_search_with_more_points_than_unknowns_finds_no_false_symmetry(x64):
    """26 parameters have 351 symmetric generators; with fewer points than that every model would have symmetries."""
    data = jax.random.normal(jax.random.key(0), (40, 26), jnp.float64)
    problem = ut.Problem(lambda p, x: jnp.sum((p - x) ** 4), data)
    assert ut.find_symmetries(problem, jnp.linspace(0.5, 1.5, 26)) == ()


def test_there_are_more_points_than_unknowns_per_neuron(x64, monkeypatch):
    """Two leaves with nine axes of one length are 18 unknowns per neuron: the 32 points of a large model are too few.

    The two neurons of a ReLU layer have a symmetry.
    """

    def loss(p, x):
        hidden, out = jax.nn.relu(p[0].reshape(2, 256) @ x), p[1].reshape(2, 256) @ x
        return jnp.sin(hidden @ out)

    monkeypatch.setattr(search, "MEMORY", 0)
    params = list(normal(0, *[2] * 10))
    (neurons,) = ut.find_symmetries(ut.Problem(loss, normal(1, 50, 256)), params)
    assert isinstance(neurons, Rescaling)
    assert neurons.dimension(params) == 2
