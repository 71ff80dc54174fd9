"""Estimators are what scikit-learn expects of one: clones, pipelines, searches, routing, pickles."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fewsure
from fewsure import FewsureError, Learner
from fewsure.algorithms import Ridge
from fewsure.sklearn import FewShotClassifier, FewShotRegressor

random = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(16), 14)
X = random.normal(size=(len(GROUPS), 3))
Y = X @ [1.0, -1.0, 0.5] + 3 * random.normal(size=16)[GROUPS] + 0.1 * random.normal(size=len(GROUPS))
NEW = GROUPS == 15
KINDS = np.repeat([f"kind {number}" for number in range(12)], 10)
CENTRES = random.normal(size=(12, 4))
POINTS = np.repeat(CENTRES, 10, axis=0) * 3 + random.normal(size=(120, 4))


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [FewShotRegressor("ridge"), FewShotClassifier("simpleshot")])
def test_every_check_of_scikit_learn_passes(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in found if result["status"] == "failed"}
    assert not failed
    assert len(found) > 45


def test_known_rows_of_a_new_group_are_worth_what_a_learner_makes_of_them() -> None:
    estimator = FewShotRegressor("mixed").fit(X[~NEW], Y[~NEW], GROUPS[~NEW])
    known, new = np.flatnonzero(NEW)[:4], np.flatnonzero(NEW)[4:]
    adapted = estimator.adapt(X[known], Y[known])
    mean, std = adapted.predict(X[new], return_std=True)
    assert r2_score(Y[new], mean) > 0.99
    assert np.array_equal(mean, estimator.learner_.adapt(X[known], Y[known]).predict(X[new]).mean)
    assert std.max() < estimator.predict(X[new], return_std=True)[1].min()  # before it has examples
    lower, upper = adapted.predict_interval(X[new], coverage=0.95).T
    assert ((lower < Y[new]) & (Y[new] < upper)).mean() >= 0.8
    narrow = adapted.predict_interval(X[new], coverage=0.5)
    assert (np.diff(narrow)[:, 0] < upper - lower).all()
    assert estimator.set_params(shot=4).score(X[NEW], Y[NEW], GROUPS[NEW]) == r2_score(Y[new], mean)


def test_all_groups_are_learned_from_and_a_fifth_of_them_validates() -> None:
    data = FewShotRegressor("mean").fit(X, Y, GROUPS).learner_.experiment.data
    assert len(data.pool("train").classes) == 13
    assert data.pool("validation").classes == data.pool("test").classes
    assert not set(data.pool("train").classes) & set(data.pool("validation").classes)
    assert data.fitted_scale.y_mean == pytest.approx(Y[np.isin(GROUPS.astype(str), data.pool("train").classes)].mean())


def test_cross_validation_routes_groups_to_fit_to_score_and_to_the_folds(routing: None) -> None:
    estimator = FewShotRegressor("mixed", shot=4).set_fit_request(groups=True).set_score_request(groups=True)
    found = cross_validate(estimator, X, Y, params={"groups": GROUPS}, cv=GroupKFold(4), return_estimator=True)
    for (train, test), score, fitted in zip(
        GroupKFold(4).split(X, Y, GROUPS), found["test_score"], found["estimator"], strict=True
    ):
        assert not set(GROUPS[train]) & set(GROUPS[test])
        alone = FewShotRegressor("mixed", shot=4).fit(X[train], Y[train], GROUPS[train])
        assert alone.score(X[test], Y[test], GROUPS[test]) == score == fitted.score(X[test], Y[test], GROUPS[test])
    assert found["test_score"].min() > 0.99


def test_a_search_over_options_and_methods_finds_the_better_one(routing: None) -> None:
    estimator = FewShotRegressor("mixed").set_fit_request(groups=True).set_score_request(groups=True)
    grid = [{"method": ["mean", Ridge()]}, {"method": ["mixed"], "options__slopes": [False, True]}]
    search = GridSearchCV(estimator, grid, cv=GroupKFold(2), error_score="raise").fit(X, Y, groups=GROUPS)
    assert search.best_params_["method"] != "mean"
    assert {row["method"] if isinstance(row["method"], str) else "ridge" for row in search.cv_results_["params"]} == {
        "mean",
        "ridge",
        "mixed",
    }
    assert search.best_estimator_.score(X, Y, GROUPS) > 0.99
    with pytest.raises(FewsureError, match="expected `option` to be one of"):
        clone(estimator).set_params(options__nothing=1).fit(X, Y, GROUPS)


def test_a_pipeline_hands_on_frames_and_groups(routing: None) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    last = FewShotRegressor("mixed").set_fit_request(groups=True).set_score_request(groups=True)
    pipeline = make_pipeline(StandardScaler(), last).set_output(transform="pandas")
    pipeline.fit(frame, Y, groups=GROUPS)
    assert list(last.feature_names_in_) == ["a", "b", "c"]
    plain = FewShotRegressor("mixed").fit(X, Y, GROUPS)
    assert pipeline.score(frame, Y, groups=GROUPS) == pytest.approx(plain.score(X, Y, GROUPS), abs=1e-6)


def test_clones_copies_and_pickles_of_fitted_estimators_predict_bit_for_bit() -> None:
    estimators: list[tuple[Any, Any]] = [
        (FewShotRegressor("gp"), (X, Y, GROUPS)),
        (FewShotClassifier("simpleshot"), (POINTS, KINDS)),
    ]
    for estimator, given in estimators:
        fitted, x = estimator.fit(*given), given[0][:20]
        expected = fitted.predict(x)
        for other in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
            assert np.array_equal(other.predict(x), expected)
        again = clone(fitted)
        assert not hasattr(again, "learner_")
        assert again.get_params() == fitted.get_params()
        assert np.array_equal(again.fit(*given).predict(x), expected)


def test_learners_and_adapted_tasks_pickle_with_their_certificates(tmp_path: Any) -> None:
    tasks = [(x, x.sum(1) + x[0, 0]) for x in random.normal(size=(32, 14, 3))]
    learner = Learner("mixed", data=tasks, shot=3, query=4, shares=(0.4, 0.2, 0.4), device="cpu").train(quiet=True)
    learner.certify(quiet=True)
    adapted = learner.adapt(X[:3], Y[:3])
    expected = adapted.predict(X[3:9], coverage=0.7)
    for other in (pickle.loads(pickle.dumps(learner)), copy.deepcopy(learner)):
        assert other.folder != learner.folder
        found = other.adapt(X[:3], Y[:3]).predict(X[3:9], coverage=0.7)
        assert np.array_equal(found.lower, expected.lower)
        assert (
            other.evaluate(tasks=4, quiet=True, baselines=False)["mse"]
            == learner.evaluate(tasks=4, quiet=True, baselines=False)["mse"]
        )
        other.save(tmp_path / f"{id(other)}")
        assert np.array_equal(
            fewsure.load(tmp_path / f"{id(other)}").adapt(X[:3], Y[:3]).predict(X[3:9]).mean, expected.mean
        )
    unpickled = pickle.loads(pickle.dumps(adapted))
    assert np.array_equal(unpickled.predict(X[3:9], coverage=0.7).upper, expected.upper)
    begun = pickle.loads(pickle.dumps(Learner("mixed", data=tasks, shot=3, query=4, device="cpu"))).train(quiet=True)
    assert begun.experiment.data.rows().y.shape == (448,)


def test_a_frame_may_have_categories_and_gaps() -> None:
    pd = pytest.importorskip("pandas")
    ward = np.array(["north", "south"])[random.integers(0, 2, len(Y))]
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "ward": ward})
    frame.loc[::9, "c"] = np.nan
    effect = Y + 2.0 * (ward == "north")
    estimator = FewShotRegressor("mixed", options={"missing": "impute"}).fit(frame, effect, GROUPS)
    assert estimator.score(frame, effect, GROUPS) > 0.95
    assert list(estimator.feature_names_in_) == ["a", "b", "c", "ward"]
    with pytest.raises(FewsureError, match="expected `missing` with a DataFrame, but X is an array"):
        clone(estimator).fit(X, Y, GROUPS)


def test_classes_of_fit_and_new_ones_are_told_apart() -> None:
    old = KINDS < "kind 5"
    estimator = FewShotClassifier("simpleshot").fit(POINTS[old], KINDS[old])
    assert estimator.score(POINTS[old], KINDS[old]) > 0.9
    assert list(estimator.classes_) == sorted(set(KINDS[old]))
    new = np.flatnonzero(~old)
    known, rest = new[new % 10 < 3], new[new % 10 >= 3]
    adapted = estimator.adapt(POINTS[known], KINDS[known])
    assert (adapted.predict(POINTS[rest]) == KINDS[rest]).mean() > 0.9
    probabilities = adapted.predict_proba(POINTS[rest])
    assert np.allclose(probabilities.sum(1), 1)
    sets = adapted.predict_set(POINTS[rest], coverage=0.9)
    assert ((probabilities * sets).sum(1) >= 0.9 - 1e-12).all()
    assert ((probabilities * sets).sum(1) - np.where(sets, probabilities, 1).min(1) < 0.9).all()
    assert estimator.set_params(shot=3).score(POINTS[new], KINDS[new], np.zeros(len(new))) == pytest.approx(
        (adapted.predict(POINTS[rest]) == KINDS[rest]).mean()
    )
    within = FewShotClassifier("simpleshot").fit(POINTS, KINDS, groups=np.arange(120) // 20)
    assert within.learner_.experiment.data.draws_within_group


def test_a_method_that_needs_examples_says_so_before_it_has_any() -> None:
    options = {"updates": 1, "tasks": 2, "hidden": (4,), "noise_std": 1.0}
    estimator = FewShotRegressor("maml", options=options).fit(X, Y, GROUPS)
    with pytest.raises(FewsureError, match=r"maml predicts no group before it has examples; call adapt\(X, y\)"):
        estimator.predict(X)
    assert estimator.adapt(X[:3], Y[:3]).predict(X[3:5]).shape == (2,)
