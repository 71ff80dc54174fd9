"""One meta-update, from the random stream to the stepped meta-parameters; on a GPU it is recorded once and replayed.

The recording is a CUDA graph of the whole update: sampling of tasks and noise, adaptation, meta-gradient, Adam, and the
sums of what is logged. A replay costs the host one call, whatever the algorithm does.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from fewsure import streams
from fewsure.devices import precision
from fewsure.experiment import Experiment
from fewsure.training.engine import Engine
from fewsure.training.optimiser import Optimiser
from fewsure.training.schedule import learning_rate
from fewsure.types import Parts, Stage
from fewsure.vectorise import draw_noise

EAGER_UPDATES = 3
"""Updates that are run before one is recorded, so that libraries have set themselves up."""


class MetaUpdate:
    """Calling it with the number of updates made so far makes one more, in place."""

    def __init__(self, experiment: Experiment, meta: Parts, optimiser: Optimiser, device: torch.device) -> None:
        self._experiment = experiment
        self._meta = meta
        self._optimiser = optimiser
        algorithm, model = experiment.algorithm, experiment.training_model
        self._engine = Engine.fastest(algorithm, model, device, experiment.training.chunk_size)
        self._noise_spec = algorithm.noise(model)
        self._tasks = experiment.data.tasks("train", device)
        self._generator = torch.Generator(device)
        self._update = torch.zeros((), dtype=torch.long, device=device)
        self._records = device.type == "cuda" and experiment.training.cuda_graph
        self._graph: Any = None
        self._calls = 0
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self._count = 0

    def __call__(self, update: int) -> None:
        options = self._experiment.training
        self._generator.manual_seed(streams.number(options.seed, "train", update))
        self._update.fill_(update)
        self._optimiser.set_learning_rate(
            learning_rate(
                update, options.updates, peak=options.lr, schedule=options.schedule, warm_up=options.lr_warm_up
            )
        )
        if not self._records:
            self._make()
        elif self._calls < EAGER_UPDATES:
            self._make_aside()
        else:
            if self._graph is None:
                self._record()
            self._make() if self._graph is None else self._graph.replay()
        self._calls += 1
        self._count += 1

    def means(self) -> dict[str, float]:
        """The logged scalars, averaged over the updates since `forget_means`, and the share of those that were skipped.

        An update whose gradient is not finite is skipped; if all were, the averages are NaN. Waits for the device.
        """
        assert self._sums is not None
        *sums, made = self._sums.tolist()
        averages = [value / made if made else float("nan") for value in sums]
        return dict(zip(self._names, averages, strict=True)) | {"skipped": 1 - made / self._count}

    def forget_means(self) -> None:
        """Start a new average."""
        assert self._sums is not None
        self._sums.zero_()
        self._count = 0

    @property
    def count(self) -> int:
        """Updates since `forget_means`."""
        return self._count

    def _make(self) -> None:
        with precision(self._experiment.training.precision):
            self._make_precisely()

    def _make_precisely(self) -> None:
        tasks = self._experiment.training.tasks
        meta_batch, _ = self._tasks.sample(tasks, self._generator)
        shared, noise = draw_noise(self._noise_spec, tasks, self._generator)
        stage = Stage(self._update, tasks, self._experiment.training.updates)
        gradient, info = self._engine.gradient(self._meta, meta_batch, shared, noise, stage)
        norm = self._optimiser.step(gradient, self._experiment.training.clip_norm)
        made = norm.isfinite()
        values = torch.stack([*info.values(), norm, torch.ones_like(norm)])
        if self._sums is None:
            self._names, self._sums = [*info, "gradient_norm"], torch.zeros_like(values)
        self._sums += torch.where(made, values, 0)

    def _make_aside(self) -> None:
        # Recording wants what it will record to have run on another stream than the default one.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._make()
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)  # each replay then draws from the seed it is given
        try:
            with torch.cuda.graph(graph):
                self._make()
            self._graph = graph
        except RuntimeError as error:
            self._records = False
            warnings.warn(f"the update cannot be recorded, and runs one kernel at a time ({error})", stacklevel=2)
