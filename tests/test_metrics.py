"""Metrics against the paper's own printed tables, scipy and simulation."""

import numpy as np
import pytest
import scipy.stats
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from fewsure.evaluation.metrics import density
from fewsure.evaluation.metrics.calibration import (
    LEVELS,
    adaptive_calibration_error,
    binned,
    binned_errors,
    calibration_errors,
    confidence_cells,
    quantile_reliability,
)
from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.evaluation.metrics.scores import brier_score, negative_log_likelihood
from fewsure.evaluation.metrics.summary import BUCKETS, TaskMean, TaskTotal, mean_over_tasks
from fewsure.report.evaluation_tables import columns_of

METHODS = ("MAML", "PLATIPUS", "BMAML", "ABML", "SImPa")


@pytest.mark.parametrize("method", METHODS)
def test_errors_of_the_papers_reliability_rows_equal_its_printed_ones(paper: dict, method: str) -> None:
    printed = paper["regression_sine_line_5shot"]
    assert printed["reliability"]["levels"] == pytest.approx(LEVELS)
    ece, mce = calibration_errors(torch.tensor(printed["reliability"][method], dtype=torch.float64))
    assert float(ece) == pytest.approx(printed["ece"][method], abs=5e-5)
    assert float(mce) == pytest.approx(printed["mce"][method], abs=5e-5)


@pytest.mark.parametrize("samples", [1, 2, 10, 32])
def test_reliability_equals_numpy_quantiles_and_scipys_normal_cdf(samples: int) -> None:
    generator = torch.Generator().manual_seed(samples)
    predictions = torch.randn(samples, 17, generator=generator, dtype=torch.float64)
    truth = torch.randn(17, generator=generator, dtype=torch.float64)
    quantiles = np.quantile(predictions.numpy(), LEVELS, axis=0)
    expected = scipy.stats.norm.cdf(quantiles, loc=truth.numpy(), scale=0.3).mean(1)
    np.testing.assert_allclose(quantile_reliability(predictions, truth, 0.3).numpy(), expected, atol=1e-14)


def test_samples_from_the_noise_itself_are_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2000, generator=generator)
    predictions = truth + 0.3 * torch.randn(1000, 2000, generator=generator)
    _, mce = calibration_errors(quantile_reliability(predictions, truth, 0.3))
    assert float(mce) < 0.01


def test_the_density_around_functions_equals_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    y = torch.randn(7, generator=generator, dtype=torch.float64)
    components = scipy.stats.norm(loc=values.numpy(), scale=0.3)
    mixture = density.around_functions(values, 0.3)
    expected = {
        "mean": values.mean(0),
        "function_std": values.std(0, correction=0),
        "noise_std": torch.full((7,), 0.3),
        "std": (values.var(0, correction=0) + 0.09).sqrt(),
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(density, name)(mixture), value.double())
    np.testing.assert_allclose(density.log_density(mixture, y), np.log(components.pdf(y.numpy()).mean(0)), rtol=1e-12)
    np.testing.assert_allclose(density.share_below(mixture, y), components.cdf(y.numpy()).mean(0), rtol=1e-12)
    draws = torch.from_numpy(components.rvs(size=(20_000, 5, 7), random_state=0)).flatten(0, 1)  # (draws, N)
    apart = (draws - draws[torch.randperm(len(draws), generator=generator)]).abs()
    sampled = (draws - y).abs().mean(0) - 0.5 * apart.mean(0)
    torch.testing.assert_close(density.crps(mixture, y), sampled, atol=0.02, rtol=0)
    at = density.quantile(mixture, 0.2)
    torch.testing.assert_close(density.share_below(mixture, at), torch.full((7,), 0.2).double())


@pytest.mark.parametrize("tasks", [2, 4, 100])
def test_the_interval_of_a_mean_covers_at_its_rate_however_few_tasks_there_are(tasks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(2000):
        interval = mean_over_tasks(torch.randn(tasks, generator=generator))
        covered += abs(interval["mean"]) <= interval["ci95"]
    assert covered / 2000 == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 2000) ** 0.5)


def intervals(reliability: torch.Tensor) -> tuple[list[float], ...]:
    total = TaskTotal()
    total.add(reliability)
    return total.intervals(calibration_errors)


def test_bootstrap_intervals_hold_the_estimate_and_shrink_with_tasks() -> None:
    generator = torch.Generator().manual_seed(0)
    reliability = 0.5 + 0.1 * torch.rand(400, 11, generator=generator)
    ece = float(calibration_errors(reliability.mean(0))[0])
    (low, high), _ = intervals(reliability)
    assert low <= ece <= high
    (low_few, high_few), _ = intervals(reliability[:40])
    assert high - low < high_few - low_few


def test_the_interval_of_an_ece_is_biased_upwards_and_called_so() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        calibrated = torch.tensor(LEVELS) + 0.2 * torch.rand(50, 1, generator=generator) - 0.1
        ((low, high), _) = intervals(calibrated + 0.1 * torch.randn(50, 11, generator=generator))
        assert 0 < low < high
    assert [column.header for column in columns_of({})[-2:]] == ["ECE [95 %, biased up]", "MCE [95 %, biased up]"]


@pytest.mark.parametrize("tasks", [2, 700, BUCKETS, BUCKETS + 1, 2 * BUCKETS + 4321])
def test_a_mean_that_comes_in_pieces_is_numpys_and_the_pieces_have_no_effect(tasks: int) -> None:
    values = 5 + torch.randn(tasks, generator=torch.Generator().manual_seed(tasks), dtype=torch.float64)
    means = []
    for size in (tasks, 300, 7001):
        mean = TaskMean()
        for piece in values.split(size):
            mean.add(piece)
        means.append((mean.mean(), mean.error()))
    assert means[0] == means[1] == means[2]
    assert means[0] == pytest.approx((values.numpy().mean(), scipy.stats.sem(values.numpy())), rel=1e-12)
    equal = mean_over_tasks(torch.full((tasks,), 0.1, dtype=torch.float64))
    assert (equal["mean"], equal["ci95"]) == (pytest.approx(0.1), 0)


def test_intervals_do_not_depend_on_the_pieces_and_groups_give_those_of_single_tasks() -> None:
    tasks = 3 * BUCKETS + 1234
    generator = torch.Generator().manual_seed(0)
    reliability = 0.6 * torch.tensor(LEVELS) + 0.1 * torch.rand(tasks, 11, generator=generator)
    pieces = TaskTotal()
    for piece in reliability.split(777):
        pieces.add(piece)
    found = intervals(reliability)
    assert pieces.intervals(calibration_errors) == found
    torch.testing.assert_close(pieces.mean(), reliability.double().mean(0), rtol=1e-12, atol=0)
    # Where the signs of the gaps and the worst level are the same in all resamples, both errors are means over tasks.
    gap = reliability.double() - torch.tensor(LEVELS, dtype=torch.float64)
    signed = gap * gap.mean(0).sign()
    worst = signed[:, int(signed.mean(0).argmax())]
    for values, (low, high) in zip((signed.mean(1), worst), found, strict=True):
        expected = mean_over_tasks(values)
        assert (low + high) / 2 == pytest.approx(expected["mean"], abs=0.2 * expected["ci95"])
        assert (high - low) / 2 == pytest.approx(expected["ci95"], rel=0.1)


def grouped_scores(
    groups: int, generator: torch.Generator, tasks: int = 200
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores of tasks that are drawn from a few groups at random, their groups (T, 1), and the groups' own scores."""
    own = torch.randn(groups, generator=generator, dtype=torch.float64)
    drawn = torch.randint(groups, (tasks,), generator=generator)
    return own[drawn] + 0.3 * torch.randn(tasks, generator=generator), drawn.unsqueeze(-1), own


@pytest.mark.parametrize("groups", [5, 14, 40])
def test_intervals_over_groups_cover_whatever_the_number_of_tasks(groups: int) -> None:
    generator = torch.Generator().manual_seed(groups)
    covered = naive = 0
    for _ in range(2000):
        scores, drawn, _ = grouped_scores(groups, generator)
        interval, of_tasks = mean_over_tasks(scores, drawn), mean_over_tasks(scores)
        covered += abs(interval["mean"]) <= interval["ci95"]
        naive += abs(of_tasks["mean"]) <= of_tasks["ci95"]
    assert covered / 2000 == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 2000) ** 0.5)
    assert naive / 2000 < 0.65  # 200 draws are no 200 groups


def test_an_interval_over_groups_is_students_of_their_means_and_one_group_has_none() -> None:
    scores, groups, _ = grouped_scores(7, torch.Generator().manual_seed(0))
    means = [float(scores[groups[:, 0] == group].mean()) for group in range(7)]
    expected = scipy.stats.t.interval(0.95, 6, np.mean(means), scipy.stats.sem(means))
    found = mean_over_tasks(scores, groups)
    assert (found["mean"] - found["ci95"], found["mean"] + found["ci95"]) == pytest.approx(expected)
    other = scores - 0.3 * torch.randn(200, generator=torch.Generator().manual_seed(1))
    both = PairedScores()
    both.add(scores, other, groups)
    differences = [float((scores - other)[groups[:, 0] == group].mean()) for group in range(7)]
    assert both.test()["p_value"] == pytest.approx(scipy.stats.ttest_1samp(differences, 0).pvalue)
    one = torch.zeros(200, 1, dtype=torch.long)
    assert mean_over_tasks(scores, one) == {"mean": pytest.approx(float(scores.mean()))}
    alone, total = PairedScores(), TaskTotal()
    alone.add(scores, other, one)
    total.add(scores.unsqueeze(-1) * torch.ones(11), one)
    assert alone.test()["p_value"] is None
    assert "ci95" not in alone.test()["difference"]
    assert "ece_ci95" not in total.calibration(calibration_errors)


def test_tasks_that_share_classes_have_the_jackknife_over_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    sets = torch.combinations(torch.arange(8), 3)
    scores = torch.randn(8, generator=generator)[sets].prod(1).double()
    left_out = np.array([float(scores[(sets != one).all(1)].mean()) for one in range(8)])
    error = (7 / 8 * ((left_out - left_out.mean()) ** 2).sum()) ** 0.5
    found = mean_over_tasks(scores, sets)
    assert found["mean"] == pytest.approx(float(scores.mean()))
    assert found["ci95"] == pytest.approx(scipy.stats.t.ppf(0.975, 7) * error)
    assert "ci95" not in mean_over_tasks(scores[:1], sets[:1])  # tasks of the same three classes


def test_intervals_over_classes_cover_where_tasks_share_them() -> None:
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(1000):
        own = torch.randn(16, generator=generator, dtype=torch.float64)
        sets = torch.rand(400, 16, generator=generator).argsort(1)[:, :5]
        scores = own[sets].mean(1) + 0.3 * torch.randn(400, generator=generator)
        interval = mean_over_tasks(scores, sets)
        covered += abs(interval["mean"]) <= interval["ci95"]
    assert 0.935 < covered / 1000 < 0.985  # the jackknife errs on the wide side


def test_resampled_groups_give_the_errors_of_their_means_and_few_give_wide_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    widths = []
    for groups in (5, 40):
        shift, drawn, own = grouped_scores(groups, generator)
        total = TaskTotal()
        total.add(0.5 + 0.01 * shift.unsqueeze(-1).expand(-1, 11), drawn)
        assert total.groups == groups
        assert float(total.mean()[0]) == pytest.approx(0.5 + 0.01 * float(own.mean()), abs=0.002)
        # The share at level 0 less that level is a mean, whose interval is Student's.
        ((low, high),) = total.intervals(lambda mean: (mean[:, 0],))
        expected = mean_over_tasks(0.5 + 0.01 * shift, drawn)
        assert (low + high) / 2 == pytest.approx(expected["mean"], abs=0.3 * expected["ci95"])
        assert (high - low) / 2 == pytest.approx(expected["ci95"], rel=0.35)
        widths.append(high - low)
    assert widths[0] > 2 * widths[1]


def random_classification(examples: int, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(examples)
    probabilities = (2 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    return probabilities, torch.randint(classes, (examples,), generator=generator)


def errors_of(probabilities: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    confidence, label = probabilities.max(-1)
    ece, mce = binned_errors(binned(confidence, label == y))
    return float(ece), float(mce)


@pytest.mark.parametrize("examples", [7, 100, 5000])
def test_calibration_errors_of_classes_equal_torchmetrics(examples: int) -> None:
    probabilities, y = random_classification(examples)
    for found, norm in zip(errors_of(probabilities, y), ("l1", "max"), strict=True):
        expected = multiclass_calibration_error(probabilities, y, num_classes=5, n_bins=10, norm=norm)
        assert found == pytest.approx(float(expected), rel=1e-6)


def test_full_confidence_is_in_the_last_bin_and_empty_bins_count_for_nothing() -> None:
    correct = torch.tensor([True, True, True, False, False])
    assert float(binned_errors(binned(torch.ones(5), correct))[0]) == pytest.approx(0.4)
    # 4 points of confidence 1.0 and 0.95 share a bin, |(3 · 1 + 0.95)/4 − 3/4| = 0.2375; one of 0.25 is right: 0.75
    confidence = torch.tensor([1.0, 1.0, 1.0, 0.95, 0.25])
    ece, mce = binned_errors(binned(confidence, torch.tensor([True, True, False, True, True])))
    assert float(ece) == pytest.approx(0.8 * 0.2375 + 0.2 * 0.75)
    assert float(mce) == pytest.approx(0.75)


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_bins_give_its_printed_errors(paper: dict, method: str) -> None:
    printed = paper["mini_imagenet_calibration"]
    rows = printed["reliability_5way_1shot"][method]
    confidence, accuracy, weight = (torch.tensor(rows[name]).double() for name in ("confidence", "accuracy", "weight"))
    ece, mce = binned_errors(torch.stack([weight, weight * confidence, weight * accuracy], dim=-1))
    # The printed weights sum to 1.02 or more, and the printed ECE is not divided by that sum.
    assert float(ece * weight.sum()) == pytest.approx(printed["ece"][method], abs=1e-7)
    assert float(mce) == pytest.approx(printed["mce"][method], abs=1e-7)


def test_tables_of_tasks_add_up_to_the_table_of_all_points() -> None:
    probabilities, y = random_classification(90)
    confidence, label = probabilities.max(-1)
    parts = [binned(confidence[part], (label == y)[part]) for part in (slice(0, 40), slice(40, 90))]
    torch.testing.assert_close(sum(parts), binned(confidence, label == y))


def test_adaptive_bins_hold_equally_many_points() -> None:
    confidence = torch.linspace(0.5, 1, 101, dtype=torch.float64)[1:]
    correct = torch.arange(100) % 2 == 0
    blocks = zip(confidence.reshape(10, 10), correct.reshape(10, 10).double(), strict=True)
    expected = sum(abs(float(c.mean() - a.mean())) for c, a in blocks) / 10
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    cells = confidence_cells(confidence[order], correct[order])
    assert float(adaptive_calibration_error(cells)) == pytest.approx(expected)


def test_examples_of_equal_confidence_are_shared_by_adaptive_bins_and_tables_add_up() -> None:
    # Of 40 points, 30 have confidence 1, of which 6 are wrong; the others, of 0.5, are all right.
    confidence = torch.cat([torch.full((10,), 0.5), torch.ones(30)])
    correct = torch.arange(40) < 34
    # Bins hold 4: two of 0.5 alone, one of 2 and 2 (gaps −½ and +6/30), seven of 1 alone.
    expected = (8 * 0.5 + abs(2 * -0.5 + 2 * 0.2) + 28 * 0.2) / 40
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    parts = [confidence_cells(confidence[part], correct[part]) for part in (order[:13], order[13:])]
    assert float(adaptive_calibration_error(parts[0] + parts[1])) == pytest.approx(expected)
    probabilities, y = random_classification(5000)
    chosen, label = probabilities.max(-1)
    ordered = (chosen - (label == y).double())[chosen.argsort()].reshape(10, 500)
    found = float(adaptive_calibration_error(confidence_cells(chosen, label == y)))
    assert found == pytest.approx(float(ordered.sum(1).abs().sum() / 5000), abs=1e-4)


def test_scores_of_classes_equal_their_definitions_and_torchs() -> None:
    probabilities, y = random_classification(200)
    nll = torch.nn.functional.nll_loss(probabilities.log(), y)
    assert float(negative_log_likelihood(probabilities, y)) == pytest.approx(float(nll))
    brier = ((probabilities - torch.eye(5, dtype=torch.float64)[y]) ** 2).sum() / 200
    assert float(brier_score(probabilities, y)) == pytest.approx(float(brier))
    certain = torch.tensor([[1.0, 0.0]])
    assert 80 < float(negative_log_likelihood(certain, torch.tensor([1]))) < 100


def test_the_paired_test_equals_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    for tasks in (2, 3, 10, 1000, 100_000):
        first, second = torch.randn(2, tasks, generator=generator, dtype=torch.float64)
        for shifted in (first, first + 0.3, first + 3.0, second):
            scores = PairedScores()
            scores.add(shifted, second)
            found, expected = scores.test(), scipy.stats.ttest_rel(shifted, second)
            if shifted is second:
                assert (found["t"], found["p_value"]) == (0.0, 1.0)
            else:
                assert found["t"] == pytest.approx(expected.statistic)
                assert found["p_value"] == pytest.approx(expected.pvalue, rel=1e-8, abs=1e-300)
