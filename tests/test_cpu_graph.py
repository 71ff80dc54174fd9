"""A recording on a CPU: the numbers of the work itself, for every method, and those of a training."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewsure.bench.cases import maml
from fewsure.bench.timing import initial_meta
from fewsure.core import cpu_graph
from fewsure.core.cpu_graph import CpuGraph
from fewsure.core.recording import Replayed
from fewsure.evaluation.evaluate import BLOCK, UnseenBlocks
from fewsure.training.experiment import Experiment
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.training.update import MetaUpdate, new_optimiser
from fewsure.types import Parts

from .helpers import assert_close
from .test_protocol import CASES, blobs, small  # noqa: F401 (a fixture)

CPU = torch.device("cpu")
NEVER = 10**9


def quick(name: str, data: str, folder: Path = Path("features")) -> Experiment:
    """With two steps in a task."""
    experiment = small(name, data, folder)
    if hasattr(experiment.algorithm, "inner_steps"):
        algorithm = dataclasses.replace(experiment.algorithm, inner_steps=2)
        experiment = dataclasses.replace(experiment, algorithm=algorithm)
    training = dataclasses.replace(experiment.training, updates=6, tasks=4)
    return dataclasses.replace(experiment, training=training)


def updated(experiment: Experiment) -> tuple[Parts, dict[str, float], bool]:
    """The meta-parameters and the log after five updates, and whether the last ones were replayed."""
    meta = initial_meta(experiment, CPU)
    make_update = MetaUpdate(experiment, meta, new_optimiser(meta, experiment.training, CPU), CPU)
    for update in range(5):
        make_update(update)
    recorded = [size.recorded.is_recorded for size in make_update._sizes.values()]
    return meta, make_update.means(), all(recorded)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_replayed_updates_are_the_plain_ones_bit_for_bit(
    case: tuple[str, str],
    blobs: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = quick(*case, blobs)
    if not any(initial_meta(experiment, CPU).values()):
        pytest.skip("it has nothing to learn")
    monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", NEVER)
    plain, log, _ = updated(experiment)
    monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", 1)
    replayed, same_log, is_recorded = updated(experiment)
    assert_close(replayed, plain, 0)
    assert same_log == log
    assert is_recorded


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> CpuGraph[Tensor]:
    """One that records its first call."""
    monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", 0)
    return CpuGraph(name="the work", records=True)


def replayed(graph: CpuGraph[Tensor], work: Callable[[], Tensor], change: Callable[[], object]) -> tuple[Tensor, int]:
    """What a replay gives after a change of what the work takes, and the number of its kernels."""
    graph(work)
    assert graph._kernels is not None
    change()
    return graph(work).clone(), len(graph._kernels)


def test_constants_views_and_what_nobody_takes_are_not_computed_again(graph: CpuGraph[Tensor]) -> None:
    x = torch.zeros(3)

    def work() -> Tensor:
        x.mean()
        half = torch.ones_like(x).div(2)
        return (x.detach().view(3, 1) + half).expand(3, 3)

    found, kernels = replayed(graph, work, lambda: x.fill_(1.0))
    assert torch.equal(found, torch.full((3, 3), 1.5))
    assert kernels == 1


def test_memory_that_the_work_makes_and_changes_begins_anew(graph: CpuGraph[Tensor]) -> None:
    x = torch.ones(2)

    def work() -> Tensor:
        total = torch.zeros(2)
        total[0] += x[1]
        return total * 2

    assert torch.equal(replayed(graph, work, lambda: x.fill_(3.0))[0], torch.tensor([6.0, 0.0]))
    assert torch.equal(graph(work), torch.tensor([6.0, 0.0]))


def test_random_numbers_follow_the_seed_of_the_generator(graph: CpuGraph[Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)

    def work() -> Tensor:
        return torch.rand(3, generator=generator) + torch.randn(3, generator=generator)

    found, _ = replayed(graph, work, lambda: generator.manual_seed(7))
    assert torch.equal(found, CpuGraph[Tensor](name="", records=False)(lambda: (generator.manual_seed(7), work())[1]))


def test_tensors_that_are_needed_at_different_times_share_memory(graph: CpuGraph[Tensor]) -> None:
    x = torch.ones(1000)

    def work() -> Tensor:
        found = x
        for _ in range(50):
            found = found.cos()
        return found.sum(0)

    expected = work()
    assert torch.equal(replayed(graph, work, lambda: None)[0], expected)
    assert graph._kernels is not None
    outputs = {kernel.keywords["out"].data_ptr() for kernel in graph._kernels}
    assert len(outputs) == 3  # two in turn, and the sum


def test_work_that_decides_by_numbers_is_called_plainly(graph: CpuGraph[Tensor]) -> None:
    x = torch.ones(3)

    def work() -> Tensor:
        return x + 1 if float(x.sum()) > 0 else x

    with pytest.warns(UserWarning, match="the work cannot be recorded"):
        assert torch.equal(graph(work), torch.full((3,), 2.0))
    x.neg_()
    assert torch.equal(graph(work), -torch.ones(3))


def test_a_shape_that_depends_on_numbers_is_not_recorded(graph: CpuGraph[Tensor]) -> None:
    x = torch.tensor([1.0, -1.0])
    with pytest.warns(UserWarning, match="cannot be recorded"):
        graph(lambda: x[x > 0])
    assert not graph.is_recorded


def trained(folder: Path, *, stop_after: int | None = None) -> Parts:
    run = Run.open(folder) if (folder / "config.json").is_file() else Run.create(folder, quick("maml", "sine-line"))
    calls = iter(range(100))
    return train(run, CPU, stop=lambda: stop_after is not None and next(calls) + 1 >= stop_after)


def test_a_training_ends_in_the_same_numbers_recorded_or_not_and_interrupted_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(tmp_path / "plain")
    monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", 1)
    recorded = trained(tmp_path / "recorded")
    trained(tmp_path / "interrupted", stop_after=3)
    assert_close(recorded, plain, 0)
    assert_close(trained(tmp_path / "interrupted"), plain, 0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_replayed_blocks_of_an_evaluation_are_the_plain_ones_bit_for_bit(
    case: tuple[str, str],
    blobs: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = quick(*case, blobs)
    meta, tasks = initial_meta(experiment, CPU), 4 * BLOCK + 3
    found = []
    for plain_calls in (NEVER, 1):
        monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", plain_calls)
        blocks = UnseenBlocks(experiment, meta, 0, "validation", tasks)
        found.append(blocks.records(0, tasks, lambda done: None))
        assert blocks._recorded.is_recorded == (plain_calls == 1)
    assert all(torch.equal(found[1][name], value) for name, value in found[0].items())


@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_are_replayed_in_each_thread_with_the_same_numbers(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = maml("conv4 28×28").with_options("training", tasks=4).experiment.at_known_precision()
    experiment = dataclasses.replace(experiment, algorithm=dataclasses.replace(experiment.algorithm, inner_steps=1))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", NEVER)
        plain, log, _ = updated(experiment)
        monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", 1)
        replayed, same_log, _ = updated(experiment)
    finally:
        torch.set_num_threads(before)
    assert_close(replayed, plain, 0)
    assert same_log == log


def test_a_replayed_function_takes_the_numbers_and_shapes_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_graph, "PLAIN_CALLS", 0)
    summed = Replayed(lambda tree, factor: {"sum": factor * tree["x"].sum(0)}, name="the sum")
    for size in (2, 3, 2):
        for number in (1.0, 5.0):
            found = summed({"x": torch.full((size,), number)}, 2)
            assert float(found["sum"]) == 2 * size * number
