"""The covariance of one stochastic gradient: the operator and its structured kinds."""

from undertow.covariance.base import AbstractCovariance, Projected, Split
from undertow.covariance.estimated import EstimatedCovariance
from undertow.covariance.factored import Factored, ScaledIdentity
from undertow.covariance.label import LabelCovariance
from undertow.covariance.operator import Operator, Sum
from undertow.covariance.samples import SampleCovariance

__all__ = [
    "AbstractCovariance",
    "EstimatedCovariance",
    "Factored",
    "LabelCovariance",
    "Operator",
    "Projected",
    "SampleCovariance",
    "ScaledIdentity",
    "Split",
    "Sum",
]
