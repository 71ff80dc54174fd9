"""The N-way k-shot sampler: uniform, without repetition, support and query apart, unbalanced classes included."""

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewsure.core import streams
from fewsure.data.augmentation import Mixing, Moving, turned
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool, merge
from fewsure.errors import FewsureError


def numbered(counts: list[int], groups: list[str] | None = None) -> Pool:
    """A pool whose examples are one-dimensional and hold their own row number."""
    starts = torch.tensor([0, *counts]).cumsum(0)
    rows = torch.arange(sum(counts), dtype=torch.float32).unsqueeze(-1)
    names = tuple(f"class {number}" for number in range(len(counts)))
    return Pool(rows, starts, names, tuple(groups or [""] * len(counts)), "")


def class_of(pool: Pool, rows: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(pool.starts, rows.long(), right=True) - 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(4, 30), min_size=3, max_size=12),
    st.integers(2, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 10**6),
)
def test_a_task_repeats_no_example_and_its_labels_are_its_classes(
    counts: list[int], way: int, shot: int, query: int, seed: int
) -> None:
    pool = numbered(counts)
    tasks, facts = Episodes(pool, way=way, shot=shot, query=query).sample(7, streams.generator(seed, "test"))
    assert tasks.support.x.shape == (7, way * shot, 1)
    assert tasks.query.x.shape == (7, way * query, 1)
    for task in range(7):
        rows = torch.cat([tasks.support.x[task], tasks.query.x[task]]).flatten()
        assert len(rows.unique()) == len(rows)
        assert len(facts["classes"][task].unique()) == way
        for batch in tasks[:2]:
            expected = facts["classes"][task][batch.y[task]]
            assert torch.equal(class_of(pool, batch.x[task].flatten()), expected)


def test_classes_and_examples_are_uniform_even_where_classes_differ_in_size() -> None:
    counts = [4, 9, 30, 5, 12, 7]
    pool = numbered(counts)
    tasks, facts = Episodes(pool, way=2, shot=1, query=2).sample(6000, streams.generator(0, "test"))
    assert scipy.stats.chisquare(facts["classes"].flatten().bincount(minlength=6)).pvalue > 1e-3
    rows = torch.cat([tasks.support.x, tasks.query.x], dim=1).flatten().long()
    for number, count in enumerate(counts):
        of_class = rows[class_of(pool, rows) == number] - pool.starts[number]
        assert scipy.stats.chisquare(of_class.bincount(minlength=count)).pvalue > 1e-3
    # the support example of a class is as likely as its query examples to be any one of them
    first = tasks.support.x.flatten().long()
    assert (
        scipy.stats.chisquare((first[class_of(pool, first) == 2] - pool.starts[2]).bincount(minlength=30)).pvalue > 1e-3
    )
    # every class is as likely to be called 0 as 1
    assert scipy.stats.chisquare(facts["classes"][:, 0].bincount(minlength=6)).pvalue > 1e-3


def test_within_a_group_all_classes_of_a_task_share_it_and_groups_that_are_too_small_are_left_out() -> None:
    pool = numbered([5] * 8, ["a", "b", "a", "b", "b", "a", "b", "c"])
    _, facts = Episodes(pool, way=3, shot=1, query=1, within_group=True).sample(4000, streams.generator(0, "test"))
    groups = torch.tensor([ord(group) for group in pool.groups])[facts["classes"]]
    assert torch.equal(groups.amin(1), groups.amax(1))
    counts = torch.stack([(groups[:, 0] == ord(group)).sum() for group in "ab"])
    assert int(counts.sum()) == 4000
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_pixels_become_numbers_between_0_and_1() -> None:
    pool = numbered([3, 3])._replace(examples=torch.tensor([0, 51, 255] * 2, dtype=torch.uint8).reshape(6, 1, 1, 1))
    tasks, _ = Episodes(pool, way=2, shot=1, query=2).sample(3, streams.generator(0, "test"))
    values = torch.cat([tasks.support.x, tasks.query.x], dim=1).flatten().unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 0.2, 1.0]))


def test_mixing_adds_differences_of_two_random_examples() -> None:
    pool = numbered([500, 500])
    plain, mixed = (
        Episodes(pool, way=2, shot=1, query=200, augmentation=change).sample(100, streams.generator(0, "test"))[0].query
        for change in (None, Mixing(0.5))
    )
    added = mixed.x - plain.x
    assert torch.equal(mixed.y, plain.y)
    assert set((2 * added).flatten().tolist()) <= set(map(float, range(-999, 1000)))
    expected = pool.examples.double().var(correction=0) * 2 * 0.5**2  # of the difference of two independent draws
    assert abs(float(added.double().var()) / float(expected) - 1) < 0.05
    assert abs(float(added.double().mean())) < 0.05 * float(expected) ** 0.5


def test_moved_images_are_those_of_the_pool_shifted_and_mirrored() -> None:
    images = torch.arange(40 * 64).reshape(40, 1, 8, 8)
    pool = numbered([20, 20])._replace(examples=images)
    plain, moved = (
        Episodes(pool, way=2, shot=1, query=19, augmentation=change).sample(50, streams.generator(0, "test"))[0].support
        for change in (None, Moving(shift=1, flip=True))
    )
    assert torch.equal(moved.y, plain.y)
    before, after = plain.x.flatten(0, 1), moved.x.flatten(0, 1)
    inside = after[:, :, 1:-1, 1:-1]  # where no edge is reflected, the neighbours of a pixel are still its neighbours
    steps = inside[..., 1] - inside[..., 0]
    assert set(steps.flatten().tolist()) == {1.0, -1.0}
    assert torch.equal((steps == steps[..., :1]).all(-1).flatten(), torch.ones(100, dtype=torch.bool))
    assert 0.3 < float((steps[..., 0] == 1).float().mean()) < 0.7
    middle = after[:, 0, 3:5, 3:5].mean((1, 2)) - before[:, 0, 3:5, 3:5].mean((1, 2))
    assert set(middle.tolist()) == {8.0 * down + across for down in (-1, 0, 1) for across in (-1, 0, 1)}


def test_a_turned_pool_has_each_class_four_times() -> None:
    images = torch.arange(5 * 9, dtype=torch.uint8).reshape(5, 1, 3, 3)
    pool = numbered([2, 3], ["a", "b"])._replace(examples=images)
    found = turned(pool)
    assert found.counts.tolist() == 4 * [2, 3]
    assert len(set(found.classes)) == len(set(found.groups)) == 8
    for quarters in range(4):
        part = found.examples[5 * quarters : 5 * quarters + 5]
        assert torch.equal(part, torch.rot90(images, quarters, (-2, -1)))


def test_tasks_depend_on_the_random_stream_alone() -> None:
    episodes = Episodes(numbered([6, 6, 6]), way=2, shot=1, query=3)
    one, two = (episodes.sample(4, streams.generator(1, "test"))[0] for _ in range(2))
    assert torch.equal(one.query.x, two.query.x)
    other, _ = episodes.sample(4, streams.generator(2, "test"))
    assert not torch.equal(one.query.x, other.query.x)


def test_a_merged_pool_has_the_classes_and_examples_of_both() -> None:
    both = merge(numbered([2, 3]), numbered([4]))
    assert both.counts.tolist() == [2, 3, 4]
    assert both.examples.flatten().tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"way": 4}, "a task takes 4 classes.*there are 3"),
        ({"shot": 5}, "a task takes 7 examples.*class class 1 has 6"),
        ({"within_group": True}, "2 classes.*of one group, but the largest group has 1"),
    ],
)
def test_a_pool_that_is_too_small_is_refused_with_the_numbers(options: dict, said: str) -> None:
    pool = numbered([7, 6, 7], ["a", "b", "c"])
    with pytest.raises(FewsureError, match=said):
        Episodes(pool, **({"way": 2, "shot": 1, "query": 2} | options))
