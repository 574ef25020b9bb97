"""Noise equilibria: closed forms against each other and the flow, and symmetries without an equilibrium."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry import closed_forms
from undertow.symmetry.equilibrium import NoFiniteEquilibrium, VanishingNoiseError

ETA = 0.02


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


@pytest.fixture
def factors(x64):
    x, y = double(nets.data(samples=40, inputs=4, outputs=5))
    return ut.Minibatch(ut.Problem(nets.linear_net, (x, y)), 4), double(nets.weights(U=(5, 3), W=(3, 4)))


@pytest.fixture
def relu(x64):
    noise = ut.Minibatch(ut.Problem(nets.relu_net, double(nets.data())), 4)
    return noise, double(nets.relu_params())


@pytest.mark.parametrize("decay", [0.0, 0.4])
def test_rotations_balance_and_change_nothing_else(factors, decay):
    noise, params = factors
    result = ut.equilibrium(noise, params, nets.FACTORS, step_size=ETA, weight_decay=decay)
    assert result.residual <= 1e-10
    np.testing.assert_allclose(result.params["U"] @ result.params["W"], params["U"] @ params["W"], atol=1e-12)
    np.testing.assert_allclose(noise.problem.loss(result.params), noise.problem.loss(params), rtol=1e-12)
    flow = ut.noether_flow(noise, result.params, nets.FACTORS, step_size=ETA, weight_decay=decay)
    before = ut.noether_flow(noise, params, nets.FACTORS, step_size=ETA, weight_decay=decay)
    assert np.abs(flow.rate).max() < 1e-10 * np.abs(before.rate).max()
    moved = nets.FACTORS.orbit(params, result.amount[0])
    np.testing.assert_allclose(moved["U"], result.params["U"], atol=1e-10)


@pytest.mark.parametrize("decay", [0.0, 0.6])
def test_two_layer_linear_nets_satisfy_the_balance_equation(factors, decay):
    """At the global minimum the residual does not depend on the factors: W Gamma_W W' = U' Gamma_U U."""
    noise, _ = factors
    x, y = noise.problem.data
    least = jnp.linalg.lstsq(x, y)[0].T  # 5 x 4, of rank 4
    start = {"U": least @ jnp.diag(jnp.array([1.0, 2.0, 3.0, 4.0])), "W": jnp.diag(1 / jnp.array([1.0, 2.0, 3.0, 4.0]))}
    r = x @ least.T - y
    k = decay / 2 * noise.batch_size / ETA
    gamma_w = jnp.einsum("n,ni,nj->ij", jnp.sum(r**2, 1), x, x) / len(x) + k * jnp.eye(4)
    gamma_u = jnp.einsum("n,ni,nj->ij", jnp.sum(x**2, 1), r, r) / len(x) + k * jnp.eye(5)
    u, w = closed_forms.balanced_factors(least, gamma_u, gamma_w, 4)
    np.testing.assert_allclose(u @ w, least, atol=1e-12)
    np.testing.assert_allclose(w @ gamma_w @ w.T, u.T @ gamma_u @ u, atol=1e-10)
    balanced = ut.equilibrium(noise, start, nets.FACTORS, step_size=ETA, weight_decay=decay).params
    np.testing.assert_allclose(balanced["U"] @ balanced["U"].T, u @ u.T, atol=1e-9)
    np.testing.assert_allclose(balanced["W"].T @ balanced["W"], w.T @ w, atol=1e-9)


def test_directions_that_do_not_affect_the_product_become_zero(x64):
    x, y = double(nets.data(samples=40, inputs=4, outputs=2))
    noise = ut.Minibatch(ut.Problem(nets.linear_net, (x, y)), 4)
    params = double(nets.weights(U=(2, 6), W=(6, 4)))
    result = ut.equilibrium(noise, params, nets.FACTORS, step_size=ETA)
    assert result.infinite == (4,)
    assert result.residual < 1e-10
    np.testing.assert_allclose(result.params["U"] @ result.params["W"], params["U"] @ params["W"], atol=1e-12)
    assert np.linalg.matrix_rank(result.params["W"], tol=1e-10) == 2


def test_layers_that_share_weights_are_solved_together(relu):
    noise, params = relu
    result = ut.equilibrium(noise, params, nets.RELU_LAYERS, step_size=ETA, weight_decay=0.1)
    assert result.residual <= 1e-10
    np.testing.assert_allclose(noise.problem.losses(result.params), noise.problem.losses(params), rtol=1e-10)
    for layer in nets.RELU_LAYERS:
        rate = ut.noether_flow(noise, result.params, layer, step_size=ETA, weight_decay=0.1).rate
        scale = ut.noether_flow(noise, params, layer, step_size=ETA, weight_decay=0.1).rate
        assert np.abs(rate).max() < 1e-9 * np.abs(scale).max()


def test_the_equilibrium_minimises_noise_and_penalty_on_the_orbit(relu):
    """F = eta/4 Tr Sigma + lambda/2 |params|^2 grows in every direction along the orbit."""
    noise, params = relu
    decay = 0.1

    def cost(p):
        weights = sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(p))
        return ETA / 4 * float(noise.covariance(p).trace()) + decay / 2 * weights

    result = ut.equilibrium(noise, params, nets.RELU_LAYERS, step_size=ETA, weight_decay=decay)
    least = cost(result.params)
    for seed in range(6):
        direction = 0.1 * jax.random.normal(jax.random.key(seed), (5,), jnp.float64)
        assert cost(nets.RELU_LAYERS[0].orbit(result.params, direction)) > least
    assert cost(params) > least


def test_every_start_on_an_orbit_has_the_same_equilibrium(relu):
    noise, params = relu
    ends = []
    for seed in range(3):
        amount = jax.random.normal(jax.random.key(seed), (5,), jnp.float64)
        start = nets.RELU_LAYERS[0].orbit(params, amount)
        ends.append(ut.equilibrium(noise, start, nets.RELU_LAYERS, step_size=ETA).params)
    for end in ends[1:]:
        for a, b in zip(jax.tree.leaves(ends[0]), jax.tree.leaves(end), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


def test_a_general_generator_is_solved_by_root_finding(factors):
    noise, params = factors
    generator = {"U": jnp.ones((5, 3)), "W": -jnp.ones((3, 4))}
    for kind in (generator, lambda v: {"U": v["U"], "W": -v["W"]}):
        by_root = ut.equilibrium(noise, params, ut.Exponential(kind), step_size=ETA, weight_decay=0.2)
        closed = ut.equilibrium(
            noise, params, ut.Rescaling(lambda p: p["U"], lambda p: p["W"]), step_size=ETA, weight_decay=0.2
        )
        np.testing.assert_allclose(by_root.amount[0], closed.amount[0], rtol=1e-8)


@pytest.mark.slow  # a claim measures the same quantity
def test_rotations_in_a_chain(x64):
    """Three layers: two rotations that share the middle one; the ends agree with the closed form of Theorem 5.4."""
    keys = jax.random.split(jax.random.key(0), 4)
    scale_x, scale_e = jnp.array([1.0, 2.0, 0.5]), jnp.array([0.3, 1.0, 2.0])
    x = jax.random.normal(keys[0], (4000, 3), jnp.float64) * jnp.sqrt(scale_x)[None]
    truth = jax.random.normal(keys[1], (3, 3), jnp.float64)
    noise_y = jax.random.normal(keys[2], (4000, 3), jnp.float64) * jnp.sqrt(scale_e)[None]
    problem = ut.Problem(
        lambda p, s: nets.square(p["C"] @ (p["B"] @ (p["A"] @ s[0])), s[1]), (x, x @ truth.T + noise_y)
    )
    start = {"A": 2 * truth, "B": jnp.eye(3) * 0.5, "C": jnp.eye(3)}
    pairs = (
        ut.DoubleRotation(lambda p: p["B"], lambda p: p["A"]),
        ut.DoubleRotation(lambda p: p["C"], lambda p: p["B"]),
    )
    result = ut.equilibrium(ut.Minibatch(problem, 8), start, pairs, step_size=ETA)
    assert result.residual < 1e-6
    np.testing.assert_allclose(result.params["C"] @ result.params["B"] @ result.params["A"], truth, atol=1e-10)
    norms = [float(jnp.sum(result.params[name] ** 2)) for name in "ABC"]
    predicted = closed_forms.deep_linear_norms(truth, jnp.diag(scale_x), jnp.diag(scale_e), 3)
    np.testing.assert_allclose(norms, predicted, rtol=0.1)  # 4,000 samples give the moments to a few percent


def test_norms_that_only_grow_have_their_equilibrium_at_infinity(x64):
    problem = ut.Problem(nets.normalised, double(nets.data()))
    params = double(nets.weights(u=(2, 3), w=(3, 2)))
    noise = ut.Minibatch(problem, 4)
    one_sided = ut.Exponential({"u": jnp.zeros((2, 3)), "w": 3 * jnp.ones((3, 2))}, label="three times the norm")
    for symmetry, name in ((nets.SCALE, "scaling of w"), (one_sided, "three times the norm")):
        with pytest.warns(NoFiniteEquilibrium, match=f"1 of 1 symmetries have no finite equilibrium: {name}"):
            result = ut.equilibrium(noise, params, symmetry, step_size=ETA)
        assert np.isposinf(result.amount[0])
        assert result.infinite == (1,)
        assert result.residual == pytest.approx(1.0, rel=1e-9)  # no force opposes the growth
        row = str(result).splitlines()[2]
        assert row.startswith(f"{name} ")
        assert row.endswith("1 of 1 direction at infinity")
        assert "1 of 1 direction at infinity" in result._repr_html_()
        np.testing.assert_array_equal(result.params["w"], params["w"])
        assert float(ut.noether_flow(noise, params, symmetry, step_size=ETA).rate) > 0


def weight_norm():
    """Return weight normalisation after a linear layer: a scale without an equilibrium, and a rescaling with one."""
    x, y = double(nets.data())
    loss = lambda p, s: (p["g"] * (p["v"] @ (p["w"] @ s[0])) / jnp.linalg.norm(p["v"]) - s[1][0]) ** 2
    problem = ut.Problem(loss, (x, y))
    return ut.Minibatch(problem, 4), double({"g": jnp.array(3.0), **nets.weights(v=(3,), w=(3, 2))})


@pytest.mark.parametrize("kind", [ut.Rescaling, ut.Exponential])
def test_a_symmetry_at_infinity_does_not_affect_the_others(x64, kind):
    noise, params = weight_norm()
    scale = ut.Scaling(lambda p: p["v"])
    if kind is ut.Rescaling:
        other = ut.Rescaling(lambda p: p["g"], lambda p: p["w"])
    else:  # the same generator, solved as a family that does not commute
        other = ut.Exponential(lambda v: {"g": v["g"], "v": 0 * v["v"], "w": -v["w"]}, label="g against w")
    alone = ut.equilibrium(noise, params, other, step_size=ETA)
    with pytest.warns(NoFiniteEquilibrium, match="1 of 2 symmetries have no finite equilibrium: scaling of v"):
        result = ut.equilibrium(noise, params, [scale, other], step_size=ETA)
    assert result.infinite == (1, 0)
    assert result.sweeps <= 3
    assert result.residuals[0] == result.residual == pytest.approx(1.0)
    assert result.residuals[1] < 1e-8
    for a, b in zip(jax.tree.leaves(result.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)
    rate = lambda p: float(ut.noether_flow(noise, p, other, step_size=ETA).rate)
    assert abs(rate(result.params)) < 1e-8 * abs(rate(params))


def test_weight_decay_gives_a_scale_its_closed_form(x64):
    """d|w|^2/dt = -2 lambda |w|^2 + eta s with s |w|^2 constant along the orbit: |w|^4 = eta s |w|^2/(2 lambda)."""
    noise, params = weight_norm()
    decay = 0.006
    per_sample = noise.problem.sample_gradients(params)["v"]
    spread = float(jnp.sum(jnp.var(per_sample, axis=0))) / 4  # batches of four
    expected = ETA * spread * float(jnp.sum(params["v"] ** 2)) / (2 * decay)
    result = ut.equilibrium(noise, params, ut.Scaling(lambda p: p["v"]), step_size=ETA, weight_decay=decay)
    assert result.infinite == (0,)
    assert result.residual < 1e-10
    np.testing.assert_allclose(jnp.sum(result.params["v"] ** 2) ** 2, expected, rtol=1e-10)


@pytest.mark.parametrize("radius", [0.3, 3.0])
def test_sgd_with_weight_decay_converges_to_the_equilibrium_scale(radius):
    """The gradient of +-angle is 1/r across the radius, so one step maps r^2 to (1 - eta lambda)^2 r^2 + eta^2/r^2.

    The fixed point is r^4 = eta/(lambda (2 - eta lambda)) for all draws.
    """
    problem = ut.Problem(lambda p, z: z * jnp.arctan2(p[1], p[0]), jnp.array([1.0, -1.0]))
    noise, eta, decay = ut.Minibatch(problem, 1), 0.05, 0.1
    start = radius * jnp.array([0.6, 0.8])
    equilibrium = ut.equilibrium(noise, start, ut.Scaling(lambda p: p), step_size=eta, weight_decay=decay).params
    run = ut.descend(
        noise, start, step_size=eta, weight_decay=decay, steps=1000, key=0, progress=False,
        observe={"square": lambda p: jnp.sum(p**2)},
    )  # fmt: skip
    expected = float(jnp.sum(equilibrium**2)) / np.sqrt(1 - eta * decay / 2)
    np.testing.assert_allclose(run.observed["square"][..., -1], expected, rtol=1e-5)
    np.testing.assert_allclose(expected**2, eta / (decay * (2 - eta * decay)), rtol=1e-5)


def fields():
    """Return a loss of the directions of three weights, so that each has a scaling and noise increases all norms."""
    x, y = double(nets.data(inputs=3))
    unit = lambda v: v / jnp.linalg.norm(v)
    loss = lambda p, s: (unit(p["a"]) @ s[0] + unit(p["b"]) @ s[0] ** 2 + unit(p["c"]) @ jnp.sin(s[0]) - s[1][0]) ** 2
    return ut.Minibatch(ut.Problem(loss, (x, y)), 4), double(nets.weights(a=(3,), b=(3,), c=(3,)))


COMBINED = {
    # (a b | c) + (c a | b) scales a alone; neither of the two has an equilibrium at infinity by itself
    "rescalings": (
        ut.Rescaling(lambda p: (p["a"], p["b"]), lambda p: p["c"], label="first"),
        ut.Rescaling(lambda p: (p["c"], p["a"]), lambda p: p["b"], label="second"),
    ),
    "diagonal generators": (
        ut.Exponential({"a": jnp.ones(3), "b": -jnp.ones(3), "c": jnp.zeros(3)}, label="first"),
        ut.Exponential({"a": -jnp.ones(3), "b": 2 * jnp.ones(3), "c": jnp.zeros(3)}, label="second"),
    ),
    "functions": (
        ut.Exponential(lambda v: {"a": v["a"], "b": -v["b"], "c": 0 * v["c"]}, label="first"),
        ut.Exponential(lambda v: {"a": -v["a"], "b": 2 * v["b"], "c": 0 * v["c"]}, label="second"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", [k if k != "functions" else pytest.param(k, marks=pytest.mark.slow) for k in COMBINED])
def test_a_combination_at_infinity_is_found(x64, kind):
    noise, params = fields()
    first, second = COMBINED[kind]
    for alone in (first, second):
        assert ut.equilibrium(noise, params, alone, step_size=ETA).residual < 1e-9
    with pytest.warns(NoFiniteEquilibrium, match="first, 1 of 1 direction at infinity together with second"):
        result = ut.equilibrium(noise, params, [first, second], step_size=ETA)
    assert result.infinite == (1, 1)
    assert result.together == ((0, 1),)
    np.testing.assert_allclose(result.params["a"], params["a"])
    assert all(np.isposinf(a) for a in result.amount)


def lora(p, s):
    return nets.square(p["base"] @ s[0] + p["B"] @ (p["A"] @ s[0]), s[1])


def test_a_factor_of_zero_has_no_finite_equilibrium(x64):
    """At B = 0 only B has noise. The other pair has an equilibrium and moves to it."""
    x, y = double(nets.data(samples=40, inputs=4, outputs=3))
    params = double(nets.weights(base=(3, 4), A=(2, 4), U=(3, 2), W=(2, 4)) | {"B": jnp.zeros((3, 2))})
    problem = ut.Problem(lambda p, s: lora(p, s) + nets.linear_net(p, (s[0], 2 * s[1])), (x, y))
    noise = ut.Minibatch(problem, 4)
    adapter = ut.DoubleRotation(lambda p: p["B"], lambda p: p["A"])
    with pytest.warns(NoFiniteEquilibrium, match=r"1 of 2 .*GL\(2\) between B and A, 2 of 2 directions at infinity"):
        result = ut.equilibrium(noise, params, [nets.FACTORS, adapter], step_size=ETA)
    assert result.infinite == (0, 2)
    assert result.sweeps <= 3
    assert result.residuals[0] < 1e-8
    rescaled = ut.Rescaling(lambda p: p["B"], lambda p: p["A"])
    with pytest.warns(NoFiniteEquilibrium, match="rescaling, A against B"):
        ut.equilibrium(noise, params, rescaled, step_size=ETA)


def test_too_few_sweeps_give_a_warning():
    noise = ut.Minibatch(ut.Problem(nets.relu_net, nets.data()), 4)
    with pytest.warns(UserWarning, match="not converged after 1 sweeps"):
        ut.equilibrium(noise, nets.relu_params(), nets.RELU_LAYERS, step_size=ETA, max_sweeps=1)


def test_dead_neurons_do_not_move_and_are_listed(x64):
    params = double(nets.relu_params())
    params["b1"] = params["b1"].at[2].set(-100.0)
    noise = ut.Minibatch(ut.Problem(nets.relu_net, double(nets.data())), 4)
    result = ut.equilibrium(noise, params, nets.RELU_LAYERS[0], step_size=ETA)
    assert result.excluded == ((2,),)
    assert result.amount[0][2] == 0
    np.testing.assert_allclose(result.params["w1"][2], params["w1"][2])
    assert result.residual < 1e-10


def test_a_noise_of_zero_raises(x64):
    x, _ = double(nets.data())
    params = double(nets.weights(U=(2, 3), W=(3, 2)))
    problem = ut.Problem(nets.linear_net, (x, x @ params["W"].T @ params["U"].T))  # interpolated
    rescaling = ut.Rescaling(lambda p: p["U"], lambda p: p["W"])
    for symmetry in (rescaling, nets.FACTORS):
        with pytest.raises(VanishingNoiseError, match="every point of its orbit is an equilibrium"):
            ut.equilibrium(ut.Minibatch(problem, 2), params, symmetry, step_size=ETA)


BAD = {
    "no symmetry": (lambda n, p: ut.equilibrium(n, p, [], step_size=ETA), "give a symmetry or a sequence"),
    "the old order": (
        lambda n, p: ut.equilibrium(n, nets.FACTORS, p, step_size=ETA), r"the order is `equilibrium\(noise, params",
    ),
    "the old order of several": (
        lambda n, p: ut.equilibrium(n, [nets.FACTORS], p, step_size=ETA), r"the order is `equilibrium\(noise, params",
    ),
    "no noise": (lambda n, p: ut.equilibrium(n.problem, p, nets.FACTORS, step_size=ETA), "give a noise"),
    "weight decay below zero": (
        lambda n, p: ut.equilibrium(n, p, nets.FACTORS, step_size=ETA, weight_decay=-0.1), "`weight_decay` must be",
    ),
    "a step of zero": (lambda n, p: ut.equilibrium(n, p, nets.FACTORS, step_size=0.0), "`step_size` must be"),
    "a broken symmetry": (
        lambda n, p: ut.equilibrium(n, p, ut.Scaling(lambda q: q["U"]), step_size=ETA), "does not have the symmetry",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case, as_a_user):
    call, sentence = BAD[case]
    noise = ut.Minibatch(ut.Problem(nets.linear_net, nets.data()), 2)
    with pytest.raises((ValueError, TypeError), match=sentence):
        call(noise, nets.weights(U=(2, 3), W=(3, 2)))


def test_half_precision_is_computed_in_single_precision():
    """The flow and the amounts equal those of the same numbers in float32; params are returned in their own type."""
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (nets.weights(U=(2, 3), W=(3, 2)), nets.data()))
    single = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    rescaling = ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True)
    flows, ends = [], []
    for params, data in (half, single):
        noise = ut.Minibatch(ut.Problem(nets.linear_net, data), 4)
        flows.append(ut.noether_flow(noise, params, rescaling, step_size=ETA))
        ends.append(ut.equilibrium(noise, params, rescaling, step_size=ETA))
    np.testing.assert_array_equal(flows[0].rate, flows[1].rate)
    np.testing.assert_array_equal(ends[0].amount[0], ends[1].amount[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(ends[0].params)} == {jnp.dtype(jnp.bfloat16)}
    for a, b in zip(jax.tree.leaves(ends[0].params), jax.tree.leaves(ends[1].params), strict=True):
        np.testing.assert_array_equal(a, b.astype(jnp.bfloat16))


def test_an_equilibrium_prints_and_plots_its_amounts():
    product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"], label="a <balance>")
    params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
    end = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.1)
    title, header, row = str(end).splitlines()
    assert title.startswith("noise equilibrium after 1 sweep, largest residual ")
    assert header.split() == ["symmetry", "residual", "charge", "amount"]
    assert row.split()[-1] == f"{-np.log(4):.4g}"  # u and w are equal after exp(-log 4) and exp(log 4)
    assert "a &lt;balance&gt;" in end._repr_html_()
    axes = end.plot()
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [-np.log(4)], rtol=1e-5)
