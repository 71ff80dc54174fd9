"""One meta-update, from the random stream to the stepped meta-parameters, which is recorded once and replayed.

On a GPU the recording is a CUDA graph of the whole update, from the sampling of tasks to Adam's step and the logged
sums. A replay costs the host one call, whatever the algorithm does. On a CPU it is the list of all its kernels, if
tasks are vectorised; else each thread has one of a task. Each number of support examples has a recording of its own.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.core.cores import cores_that_pay, keep_freed_memory, on_cores
from fewsure.core.devices import precision
from fewsure.core.distributed import task_share, weighted_sum, world_size
from fewsure.core.recording import recording
from fewsure.core.vectorise import draw_noise, take
from fewsure.data import Tasks
from fewsure.training.engine import Engine
from fewsure.training.experiment import Experiment, Training
from fewsure.training.optimiser import Optimiser
from fewsure.training.schedule import learning_rate
from fewsure.types import Noise, Parts, Stage, Task


def new_optimiser(meta: Parts, options: Training, device: torch.device) -> Optimiser:
    """The optimiser that the options of a training ask for."""
    return Optimiser(meta, device, name=options.optimiser, weight_decay=options.weight_decay, momentum=options.momentum)


def drawn_shot(experiment: Experiment, update: int) -> int:
    """The number of support examples (of each class) of a meta-batch: k of the range with P(k) ∝ ln(1 + 1/k)."""
    least, most = experiment.data.training_shots
    if least == most:
        return least
    generator = streams.generator(experiment.training.seed, "train", update, "shot")
    share = float(torch.rand((), generator=generator, dtype=torch.float64))
    return min(most, int(least * ((most + 1) / least) ** share))


class Trouble(NamedTuple):
    """Updates in a row whose numbers are not finite, and which were therefore skipped."""

    updates: int
    terms: list[str]
    """The terms that were not finite in the first of them, in words; the cause comes first."""


class _Size(NamedTuple):
    """The part that updates with one number of support examples share."""

    tasks: Tasks
    recorded: Callable[[Callable[[], None]], None]
    cores: int
    """Cores of a CPU that an update uses."""


class MetaUpdate:
    """Calling it with the number of updates made so far makes one more, in place.

    An update whose loss, one of its terms, or gradient is not finite changes nothing. That is decided and counted on
    the device; the host learns of it when it asks for `means` or `trouble`.
    """

    def __init__(
        self,
        experiment: Experiment,
        meta: Parts,
        optimiser: Optimiser,
        device: torch.device,
    ) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        self._experiment = experiment
        self._meta = meta
        self._optimiser = optimiser
        algorithm, model = experiment.algorithm, experiment.training_model
        self._engine = Engine.fastest(algorithm, model, device, experiment.training.chunk_size)
        self._tasks = experiment.data.tasks("train", device)
        self._tasks.with_shot(experiment.data.training_shots[1])  # what cannot be drawn is missed now
        self._share = task_share(experiment.training.tasks)
        self._generator = torch.Generator(device)
        self._update = torch.zeros((), dtype=torch.long, device=device)
        # Messages between processes are not recorded: that has never been tried on a machine with several GPUs.
        self._records = world_size() == 1 and (
            experiment.training.cuda_graph if device.type == "cuda" else not self._engine.loop
        )
        self._sizes: dict[int, _Size] = {}
        self._noise_spec = cache(partial(algorithm.noise, model))
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self._count = 0
        self._skipped = torch.zeros(2, dtype=torch.long, device=device)  # in a row now, and the longest row
        self._broken: Tensor | None = None

    def __call__(self, update: int) -> None:
        options = self._experiment.training
        size = self._size(drawn_shot(self._experiment, update))
        self._generator.manual_seed(streams.number(options.seed, "train", update))
        self._update.fill_(update)
        self._optimiser.set_learning_rate(
            learning_rate(
                update, options.updates, peak=options.lr, schedule=options.schedule, warm_up=options.lr_warm_up
            )
        )
        with on_cores(size.cores):
            size.recorded(lambda: self._make(size))
        self._count += 1

    def _size(self, shot: int) -> _Size:
        """What updates with so many support examples share."""
        if shot not in self._sizes:
            recorded = recording(self._generator, name="the update", records=self._records)
            tasks, cores = self._tasks.with_shot(shot), torch.get_num_threads()
            if self._generator.device.type == "cpu" and not self._engine.loop:
                with precision(self._experiment.training.precision):
                    cores = cores_that_pay(lambda: self._engine.gradient(self._meta, *self._drawn(tasks)))
            self._sizes[shot] = _Size(tasks, recorded, cores)
        return self._sizes[shot]

    def means(self) -> dict[str, float]:
        """The logged scalars, averaged over the updates since `forget_means`, and the share of skipped updates.

        If all were, there are no averages. Waits for the device.
        """
        assert self._sums is not None
        *sums, made = self._sums.tolist()
        averages = {name: value / made for name, value in zip(self._names, sums, strict=True)} if made else {}
        return averages | {"skipped": 1 - made / self._count}

    def trouble(self) -> Trouble:
        """The longest row of skipped updates since the last call, and what was wrong. Waits for the device."""
        assert self._broken is not None
        now, longest = self._skipped.tolist()
        self._skipped[1] = now
        names = [f"`{name}`" for name in self._names[:-1]]
        names += [f"the gradient of `{name}`" for name in self._optimiser.names] + [f"`{self._names[-1]}`"]
        return Trouble(longest, [name for name, bad in zip(names, self._broken.tolist(), strict=True) if bad])

    def forget_means(self) -> None:
        """Start a new average."""
        assert self._sums is not None
        self._sums.zero_()
        self._count = 0

    @property
    def count(self) -> int:
        """Updates since `forget_means`."""
        return self._count

    def _make(self, size: _Size) -> None:
        with precision(self._experiment.training.precision):
            self._make_precisely(size)

    def _drawn(self, source: Tasks) -> tuple[Task, Noise, Noise, Stage]:
        """A meta-batch, as much of it as this process has, with its random numbers."""
        tasks = self._experiment.training.tasks
        meta_batch, _ = source.sample(tasks, self._generator)
        support, query = meta_batch.support.x.shape[1], meta_batch.query.x.shape[1]
        shared, noise = draw_noise(self._noise_spec(support, query), tasks, self._generator)
        own_tasks, own_noise = take((meta_batch, noise), self._share)
        return own_tasks, shared, own_noise, Stage(self._update, tasks, self._experiment.training.updates)

    def _make_precisely(self, size: _Size) -> None:
        found = self._engine.gradient(self._meta, *self._drawn(size.tasks))
        share = (self._share.stop - self._share.start) / self._experiment.training.tasks
        gradient, info = weighted_sum(found, share)
        terms = torch.stack(list(info.values()))
        norm = self._optimiser.step(gradient, self._experiment.training.clip_norm, terms.isfinite().all())
        values = torch.cat([terms, torch.stack([norm, torch.ones_like(norm)])])
        broken = ~torch.cat([terms, self._optimiser.norms, norm[None]]).isfinite()
        if self._sums is None or self._broken is None:
            self._names, self._sums = [*info, "gradient_norm"], torch.zeros_like(values)
            self._broken = torch.zeros_like(broken)
        made = ~broken.any()
        self._sums += torch.where(made, values, 0)
        begins = ~made & (self._skipped[0] == 0)
        self._broken.copy_(torch.where(begins, broken, self._broken))
        self._skipped[0].copy_(torch.where(made, 0, self._skipped[0] + 1))
        self._skipped[1].copy_(self._skipped.amax())
