"""Class statistics as the vector of a method: what devices add up, and the classifier that the server makes of it.

Design decisions:

- The vector holds whole numbers of steps, rounded once on the device. Single precision adds whole numbers below 2^24
  exactly, so sums do not depend on the order of contacts, and a bound is checked wherever something is added.
- A step is a power of two, about as large as the sampling error of a device's sum. Finer steps cost bits that say
  nothing about the classes: the errors of rounding and of sampling are of one kind.
- Products are those of deviations from the device's own class mean. They say nothing about a class with one sample,
  they are smaller than products of features, and the covariance of a part of the fleet is a covariance. Each device
  and class costs one degree of freedom.
- Sums are parameters of a module whose output is linear in its input. Engines, evaluation, records, checkpoints and the
  field treat them like any model.
"""

from wayfare.learning.sums.classifiers import linear_classifier
from wayfare.learning.sums.collecting import collect
from wayfare.learning.sums.layout import Sums
from wayfare.learning.sums.model import SumsModel, task_of_sums, vectors_of, with_model

__all__ = ["Sums", "SumsModel", "collect", "linear_classifier", "task_of_sums", "vectors_of", "with_model"]
