"""Bad arguments of the scikit-learn estimators."""

import warnings

import numpy as np
import pandas
import scipy.sparse

import undertow as ut
from tests.bad_input.cases import Bad, Case, counts, numbers, refused

ROWS = np.random.default_rng(0).normal(size=(12, 2))
TARGET = ROWS[:, 0] + 0.1 * np.random.default_rng(1).normal(size=12)
GROUPS = np.repeat([0, 1, 2], 4)
NAN = np.where(np.arange(24).reshape(12, 2) == 5, np.nan, ROWS)


def replaced(array, value):
    """Return the array as objects with one entry replaced."""
    changed = np.array(array, object)
    changed.flat[3] = value
    return changed


def rows(*, columns: bool = False) -> list[Bad]:
    """Return bad values of X; `columns` for those that a fit knows the columns of."""
    wrong = [
        Bad(None, "None", "not numbers"),
        Bad("text", "'text'", "not numbers"),
        Bad(3.0, "()", "give (rows, columns)"),
        Bad(ROWS[:, 0], "(12,)", "give (rows, columns)"),
        Bad(ROWS[None], "(1, 12, 2)", "give (rows, columns)"),
        Bad(np.zeros((0, 2)), "(0, 2)", "at least one row"),
        Bad(np.zeros((12, 0)), "(12, 0)", "at least one row"),
        Bad(NAN, "column 1", "missing or infinite"),
        Bad(np.where(np.isnan(NAN), np.inf, NAN), "column 1", "missing or infinite"),
        Bad(ROWS * 1j, "complex", "real numbers"),
        Bad(replaced(ROWS, "a"), "object", "not numbers"),
        Bad(replaced(ROWS, {}), "object", "not numbers"),
        Bad(replaced(ROWS, None), "object", "not numbers"),
        Bad(scipy.sparse.csr_matrix(ROWS), "sparse", "`.toarray()`"),
        Bad([[1.0], [1.0, 2.0]], "[[1.0], [1.0, 2.0]]", "not numbers"),
        Bad(np.ma.array(ROWS, mask=ROWS > 1), "masked", "drop those samples"),
        Bad(np.full((12, 2), "2020-01-01", "datetime64[D]"), "datetime64", "not numbers"),
        Bad(
            pandas.DataFrame({"a": ["x"] * 12, "b": ["y"] * 12}),
            "object" if pandas.__version__ < "3" else "dtype",
            "not numbers",
        ),
    ]
    return [*wrong, *([Bad(ROWS[:, :1], "1 features", "the columns of the fit")] if columns else [])]


TARGETS = [
    Bad(None, "None", "one number per row"),
    Bad("text", "'text'", "not numbers"),
    Bad(3.0, "()", "one number per row"),
    Bad(TARGET[:5], "(5,)", "one number per row"),
    Bad(ROWS, "(12, 2)", "one number per row"),
    Bad(np.where(np.arange(12) == 3, np.nan, TARGET), "missing", "drop those rows"),
    Bad(np.where(np.arange(12) == 3, np.inf, TARGET), "infinite", "drop those rows"),
    Bad(TARGET * 1j, "complex", "real numbers"),
    Bad(replaced(TARGET, "a"), "object", "not numbers"),
    Bad(replaced(TARGET, None), "object", "not numbers"),
    Bad(np.zeros(12), "constant", "varies"),
    Bad(np.ma.array(TARGET, mask=TARGET > 0), "masked", "drop those samples"),
    Bad([[1], [1, 2]], "[[1], [1, 2]]", "not numbers"),
]
LABELS = [
    Bad(None, "not given", "the environment of each row"),
    Bad(GROUPS[:5], "(5,)", "one label per row"),
    Bad(np.zeros(12), "one group only", "give at least two"),
    Bad("text", "'text'", "one label per row"),
    Bad([0, *[1] * 11], "group 0", "two or more"),
    Bad(np.where(GROUPS == 1, np.nan, GROUPS), "missing", "drop those rows"),
    Bad(replaced(GROUPS, None), "missing", "drop those rows"),
    Bad(replaced(GROUPS, "a"), "several types", "convert them"),
    Bad(np.ma.array(GROUPS, mask=GROUPS == 1), "masked", "drop those rows"),
    Bad(GROUPS[:, None], "(12, 1)", "one label per row"),
    Bad([[0], [1, 2]], "[[0], [1, 2]]", "one label per row"),
    Bad(replaced(GROUPS, []), "several types", "convert them"),
    Bad({}, "{}", "one label per row"),
    Bad(3, "3", "one label per row"),
]


def fit(estimator, *, settings=None, **given):
    """Fit an estimator with one bad argument."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator(**settings or {}).fit(**{"X": ROWS, "y": TARGET, "groups": GROUPS} | given)


def fitted_by(estimator):
    """Return a call that fits with one bad setting."""
    return lambda **settings: fit(estimator, settings=settings)


def predict(estimator):
    """Return a call that predicts with a fitted estimator."""
    return lambda X: fit(estimator).predict(X)


def bootstrap(estimator):
    """Return a call that draws groups with one bad argument."""
    return lambda **given: fit(estimator).bootstrap(**{"X": ROWS, "y": TARGET, "groups": GROUPS} | given)


CASES: list[Case] = [
    *refused(
        "HeteroRegressor",
        fitted_by(ut.HeteroRegressor),
        {
            "step_size": numbers(optional=True, zero=False),
            "steps": counts(optional=True),
            "alpha": numbers(below="1", zero=False),
            "seeds": counts(),
            "random_state": counts(least=0, optional=True),
        },
    ),
    *refused(
        "InvariantRegressor",
        fitted_by(ut.InvariantRegressor),
        {"level": numbers(below="1", zero=False), "alpha": numbers(below="1", zero=False)},
    ),
    *(
        case
        for estimator in (ut.HeteroRegressor, ut.InvariantRegressor)
        for case in (
            *refused(
                f"{estimator.__name__}.fit",
                lambda estimator=estimator, **given: fit(estimator, **given),
                {"X": rows(), "y": TARGETS, "groups": LABELS},
            ),
            *refused(f"{estimator.__name__}.predict", predict(estimator), {"X": rows(columns=True)}),
            *refused(
                f"{estimator.__name__}.bootstrap",
                bootstrap(estimator),
                {"repeats": counts(), "seed": counts(least=0), "y": TARGETS[:3], "groups": LABELS[:3]},
            ),
            Case(
                f"{estimator.__name__}.predict before fit",
                lambda estimator=estimator: estimator().predict(ROWS),
                f"{estimator.__name__}",
                "fit",
                "not fitted",
                "Call 'fit'",
            ),
        )
    ),
]
