"""scikit-learn estimators: `fit` learns from many groups, `adapt` takes a few rows of a new one.

estimator = FewShotRegressor("gp").fit(X, y, groups=patient)
adapted = estimator.adapt(X_known, y_known)        # a few rows of a new patient
adapted.predict(X_new), adapted.predict_interval(X_new, coverage=0.9)
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fewsure.data.encoding import read_columns
from fewsure.data.io.frames import Frame, is_frame
from fewsure.data.own.arrays import data_of_rows
from fewsure.data.own.rows import Rows
from fewsure.data.own.tables import with_inputs
from fewsure.errors import FewsureError, require
from fewsure.learner import Adapted, Learner, ValuePrediction
from fewsure.theory.concentration import require_share
from fewsure.types import Algorithm

Array = NDArray[Any]
OF_COLUMNS = ("missing", "categories")
"""Options that say how the columns of a DataFrame become inputs."""
PREFIX = "options__"


class _FewShot(BaseEstimator):  # type: ignore[misc] # (scikit-learn has no types)
    """The part that both estimators share."""

    learner_: Learner

    def __init__(
        self,
        method: str | Algorithm = "auto",
        *,
        options: Mapping[str, Any] | None = None,
        shot: int | None = None,
        random_state: Any = 0,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.options = options
        self.shot = shot
        self.random_state = random_state
        self.device = device

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; a single option is `options__NAME`."""
        known = self.options if deep and isinstance(self.options, Mapping) else {}
        single = {PREFIX + name: value for name, value in known.items()}
        return {**super().get_params(deep), **single}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or single options by `options__NAME`."""
        single = {name.removeprefix(PREFIX): params.pop(name) for name in [*params] if name.startswith(PREFIX)}
        super().set_params(**params)
        if single:
            self.options = {**(self.options or {}), **single}
        return self

    def _learn(self, X: Any, y: Array, groups: Any) -> Array:
        """Meta-learn from labels y (N,), numbers or names of classes; the inputs (N, D)."""
        options = dict(self.options or {})
        of_columns = {name: options.pop(name) for name in OF_COLUMNS if name in options}
        rows = Rows(np.empty((len(y), 0)), y, _names(groups, y), None, (), "X", tested_elsewhere=True)
        if _has_names(X):
            table = Frame(X).columns
            rows = with_inputs(rows, table, table.names, **of_columns)
        elif of_columns:
            raise FewsureError(f"expected `{next(iter(of_columns))}` with a DataFrame, but X is an array; leave it out")
        else:
            rows = Rows(np.array(X), y, rows.task, None, (), "X", tested_elsewhere=True)
        seed = int(check_random_state(self.random_state).randint(2**31))
        options = {"seed": seed} | options
        self.learner_ = Learner(self.method, data=data_of_rows(rows, {}), device=self.device, **options)
        self.learner_.train(quiet=True)
        return rows.x

    def _validated(self, X: Any) -> Any:
        """Inputs as fit had them: a DataFrame, or an array (N, D)."""
        check_is_fitted(self)
        if _has_names(X):
            return validate_data(self, X, reset=False, skip_check_array=True)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _inputs(self, X: Any) -> Array:
        X = self._validated(X)
        scale = self.learner_.experiment.data.fitted_scale
        return read_columns(Frame(X).columns, scale.columns, scale.encoding) if _has_names(X) else X

    def _score_rows(self, groups: Any, y: Array) -> list[tuple[Array, Array]]:
        """Row numbers of each group: the first `shot` ones to adapt to, and the others, where there are any."""
        shot = self.learner_.experiment.data.test_shot if self.shot is None else self.shot
        require(shot >= 1, "shot", "at least 1", shot)
        found = [(rows[:shot], rows[shot:]) for rows in _members(groups, y) if len(rows) > shot]
        if not found:
            raise FewsureError(f"expected groups of more than {shot} rows to score, but the largest has no more")
        return found


class FewShotRegressor(RegressorMixin, _FewShot):  # type: ignore[misc]
    """Predicts numbers in groups: `fit` learns what groups have in common, `adapt` takes a few rows of a new group.

    `method` is the name of a method or one of `fewsure.algorithms`, `options` are those of `fewsure.Learner`. X is an
    array, or a DataFrame whose columns may have categories and dates; `missing` and `categories` are options, too.
    `predict` before `adapt` is for a group without examples, which not all methods can do. `score` adapts to the first
    `shot` rows of each group and scores the others: R² over all of them.

    Without `groups`, all rows are one group, and `predict` is for further rows of it.
    """

    _prior: Adapted | None

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn from rows X (N, D), numbers y (N,) and the group (N,) of each row."""
        if _has_names(X):
            y = validate_data(self, X="no_validation", y=y, y_numeric=True)
            X = validate_data(self, X, skip_check_array=True)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        inputs = self._learn(X, y.astype(np.float64), np.zeros(len(y)) if groups is None else groups)
        known = len(y) if groups is None else 0
        enough = self.learner_.experiment.algorithm.min_support <= known
        self._prior = self.learner_.adapt(inputs[:known], y[:known]) if enough else None
        return self

    def adapt(self, X: Any, y: Any) -> "AdaptedRegressor":
        """The predictor of a group with these known rows."""
        inputs = self._inputs(X)
        y = column_or_1d(y, dtype=np.float64)
        return AdaptedRegressor(self, self.learner_.adapt(inputs, y))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions (N,) for a group without examples; with their standard deviations, if asked for."""
        return self._before().predict(X, return_std)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Intervals (N, 2) for a group without examples."""
        return self._before().predict_interval(X, coverage)

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """R² of the rows of each group beside its first `shot`; without groups, of a group without examples."""
        if groups is None:
            return float(super().score(X, y, sample_weight))
        inputs, y = self._inputs(X), np.asarray(y, dtype=np.float64)
        parts = self._score_rows(groups, y)
        tasks = [(self.learner_.adapt(inputs[known], y[known]), new) for known, new in parts]
        found = [AdaptedRegressor(self, adapted).predict_rows(inputs[new]).mean for adapted, new in tasks]
        scored = np.concatenate([new for _, new in parts])
        weight = None if sample_weight is None else np.asarray(sample_weight)[scored]
        return float(r2_score(y[scored], np.concatenate(found), sample_weight=weight))

    def _before(self) -> "AdaptedRegressor":
        check_is_fitted(self)
        if self._prior is None:
            name = self.learner_.experiment.algorithm_name
            raise FewsureError(
                f"{name} predicts no group before it has examples; call adapt(X, y), or choose gp or ridge"
            )
        return AdaptedRegressor(self, self._prior)


class AdaptedRegressor:
    """A group after adapting to its known rows."""

    def __init__(self, estimator: FewShotRegressor, adapted: Adapted) -> None:
        self._estimator, self.adapted_ = estimator, adapted

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions (N,); with their standard deviations, if asked for."""
        found = self.predict_rows(self._estimator._inputs(X))
        return (found.mean, found.std) if return_std else found.mean

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Intervals (N, 2) between quantiles of the predictive distribution: an estimate, no guarantee."""
        require_share(coverage, "coverage")
        found = self.predict_rows(self._estimator._inputs(X))
        return np.stack([found.quantile((1 - coverage) / 2), found.quantile((1 + coverage) / 2)], axis=1)

    def predict_rows(self, inputs: Array) -> ValuePrediction:
        """All that is predicted at inputs (N, D)."""
        found = self.adapted_.predict(inputs)
        assert isinstance(found, ValuePrediction)
        return found


class FewShotClassifier(ClassifierMixin, _FewShot):  # type: ignore[misc]
    """Tells classes apart: `fit` learns from many classes, `adapt` takes a few examples of new ones.

    `method` and `options` are as in `FewShotRegressor`. With `groups`, classes of different groups never meet.
    `predict` before `adapt` is for the classes of `fit`, with all rows as examples. `score` adapts to the first `shot`
    rows of each class of each group and scores the others: the accuracy over all of them.
    """

    classes_: Array
    _prior: Adapted

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn from rows X (N, D), labels y (N,) and the group (N,) of each row, if classes belong to groups."""
        if _has_names(X):
            y = validate_data(self, X="no_validation", y=y)
            X = validate_data(self, X, skip_check_array=True)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, number = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"expected labels of 2 classes or more, but got 1 class, {self.classes_[0]!r}")
        inputs = self._learn(X, np.array([f"class {one}" for one in number]), groups)
        self._prior = self.learner_.adapt(inputs, y)
        return self

    def adapt(self, X: Any, y: Any) -> "AdaptedClassifier":
        """The predictor of the classes of these examples."""
        inputs = self._inputs(X)
        y = column_or_1d(y)
        return AdaptedClassifier(self, self.learner_.adapt(inputs, y))

    def predict(self, X: Any) -> Array:
        """Labels (N,), among the classes of `fit`."""
        return self._before().predict(X)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (N, C) of the classes of `fit`."""
        return self._before().predict_proba(X)

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Which classes of `fit` (N, C) are in the set of each row."""
        return self._before().predict_set(X, coverage)

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """The accuracy on rows of each group beside the first `shot` of each class; without groups, of `predict`."""
        if groups is None:
            return float(super().score(X, y, sample_weight))
        inputs, y = self._inputs(X), np.asarray(y)
        found, scored = [], []
        for own in _members(groups, y):
            parts = [(own[known], own[new]) for known, new in self._score_rows(y[own], y[own])]
            known = np.concatenate([part for part, _ in parts])
            if len(np.unique(y[known])) > 1:
                scored.append(np.concatenate([part for _, part in parts]))
                task = AdaptedClassifier(self, self.learner_.adapt(inputs[known], y[known]))
                found.append(task.predict_rows(inputs[scored[-1]]))
        rows = np.concatenate(scored)
        weight = None if sample_weight is None else np.asarray(sample_weight)[rows]
        return float(accuracy_score(y[rows], np.concatenate(found), sample_weight=weight))

    def _before(self) -> "AdaptedClassifier":
        check_is_fitted(self)
        return AdaptedClassifier(self, self._prior)


class AdaptedClassifier:
    """Some classes after adapting to their examples."""

    def __init__(self, estimator: FewShotClassifier, adapted: Adapted) -> None:
        self._estimator, self.adapted_ = estimator, adapted
        assert adapted.labels is not None
        self.classes_ = np.array(adapted.labels.classes)

    def predict(self, X: Any) -> Array:
        """Labels (N,)."""
        return self.predict_rows(self._estimator._inputs(X))

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (N, C), in the order of `classes_`."""
        return self._probabilities(self._estimator._inputs(X))

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Which classes (N, C) are in the smallest set that is as probable: an estimate, no guarantee."""
        require_share(coverage, "coverage")
        probabilities = self.predict_proba(X)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, axis=1)
        before = np.cumsum(ranked, axis=1) - ranked
        chosen = np.zeros(probabilities.shape, dtype=bool)
        np.put_along_axis(chosen, order, before < coverage, axis=1)
        return chosen

    def predict_rows(self, inputs: Array) -> Array:
        """Labels (N,) at inputs (N, D)."""
        labels: Array = self.classes_[self._probabilities(inputs).argmax(1)]
        return labels

    def _probabilities(self, inputs: Array) -> Array:
        found: Any = self.adapted_.predict(inputs)
        probabilities: Array = found.probabilities / found.probabilities.sum(1, keepdims=True)
        return probabilities


def _has_names(X: Any) -> bool:
    """Whether it is a DataFrame with columns that are found by their names."""
    return is_frame(X) and all(isinstance(name, str) for name in Frame(X).names)


def _members(groups: Any, y: Array) -> list[NDArray[np.int64]]:
    """The rows of each group, in the order in which groups come first."""
    names = np.asarray(_names(groups, y))
    return [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]


def _names(groups: Any, y: Array) -> NDArray[np.str_] | None:
    """The names of groups (N,), one for one; None where there are none."""
    if groups is None:
        return None
    found = np.asarray(groups)
    check_consistent_length(found, y)
    return np.array([str(group) for group in found.tolist()])
