"""fewsure: few-shot learning that knows how sure it is.

    learner = fewsure.Learner("simpa", data="sine-line")
    learner.train(updates=1_000)
    p = learner.adapt(x_support, y_support).predict(x)

The names here are the public interface. Each is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fewsure.version import __version__

if TYPE_CHECKING:
    from fewsure.data.own.arrays import classification_tasks, labelled_examples, regression_tasks
    from fewsure.data.own.images import Images
    from fewsure.data.own.tables import Table, TableClasses
    from fewsure.errors import FewsureError
    from fewsure.learner import Adapted, ClassPrediction, Learner, ValuePrediction, load

__all__ = [
    "Adapted",
    "ClassPrediction",
    "FewsureError",
    "Images",
    "Learner",
    "Table",
    "TableClasses",
    "ValuePrediction",
    "__version__",
    "classification_tasks",
    "labelled_examples",
    "load",
    "regression_tasks",
]

_HOMES = {
    "Adapted": "learner",
    "ClassPrediction": "learner",
    "FewsureError": "errors",
    "Images": "data.own.images",
    "Learner": "learner",
    "Table": "data.own.tables",
    "TableClasses": "data.own.tables",
    "ValuePrediction": "learner",
    "classification_tasks": "data.own.arrays",
    "labelled_examples": "data.own.arrays",
    "load": "learner",
    "regression_tasks": "data.own.arrays",
}


def __getattr__(name: str) -> Any:
    # torch takes a second to load, which `fewsure --version` should not.
    if name not in _HOMES:
        raise AttributeError(f"module 'fewsure' has no attribute {name!r}")
    return getattr(import_module(f"fewsure.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
