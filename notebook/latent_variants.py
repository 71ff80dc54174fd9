"""Two variants of SImPa-latent that are not in the library, beside it on validation tasks, with one thread.

    .venv/bin/python notebook/latent_variants.py covariance            # minutes of one core
    FEWSURE_DATA=FOLDER .venv/bin/python notebook/latent_variants.py task-latent

covariance     sine-line, the preset `quickstart`: q(z) = N(μ, LLᵀ) with L = diag(σ) (I + U), where the encoder also
               gives the strict lower triangle U, against a diagonal one
task-latent    Omniglot, 5-way 1-shot, inductive: a latent u of the task scales and shifts the maps of each block of
               the network (FiLM), and the classes' latents follow from u; against the classes' latents alone

Each prints one JSON object per row and adds it to notebook/latent-variants.json.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewsure.algorithms.parts.sets import Reader, linear, linear_init
from fewsure.algorithms.simpa_latent import SimpaLatent
from fewsure.core import streams
from fewsure.core.files import write_atomically
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.networks.conv4 import Conv4
from fewsure.pipeline import start_run
from fewsure.posteriors.decoders import START_LOG_STD, HeadDecoder
from fewsure.posteriors.latent import Latent, bounded
from fewsure.posteriors.prototypes import class_means, prototype_logits
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.loop import train
from fewsure.types import Batch, Draw, Info, Model, Noise, NoiseSpec, Parts, Stage, Task
from fewsure.version import __version__

RESULTS = Path(__file__).with_name("latent-variants.json")
CPU = torch.device("cpu")
VALIDATION = 1000
"""Validation tasks, the same ones for both variants."""


# A full covariance


@dataclass(frozen=True)
class FullCovariance(SimpaLatent):
    """The encoder and each refinement also say the strict lower triangle of L."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        parts = super().init(model, generator)
        parts["encoder"]["head.bias"][2 * self.latent :] = 0.0
        return parts

    def _readers(self, decoder: Any) -> list[Reader]:
        (members, missed), found = decoder.sees, 2 * self.latent + self.latent * (self.latent - 1) // 2
        encoder = Reader(members, found, self.encoder_width, self.encoder_layers)
        return [encoder, *[Reader(missed + 2 * self.latent, found, self.encoder_width, 1)] * self.refinements]

    def _posterior(self, meta: Parts, decoder: Any, support: Batch, kl_weight: Tensor) -> Latent:
        encoder, *refinements = self._readers(decoder)
        members, change = encoder(meta["encoder"], decoder.members(meta, support))
        state, known = decoder.collected(change), 2 * self.latent
        for number, reader in enumerate(refinements):
            missed = decoder.missed(meta, support, state[: self.latent])
            look = torch.cat([missed, state[:known].expand(len(missed), -1)], -1)
            members, change = reader(meta[f"refinement{number}"], look, members)
            state = state + decoder.collected(change)
        row, column = torch.tril_indices(self.latent, self.latent, -1)
        lower = state.new_zeros(self.latent**2).scatter(0, row * self.latent + column, state[known:])
        mean, log_std = state[:known].chunk(2)
        return bounded(mean, log_std, torch.eye(self.latent) + lower.reshape(self.latent, self.latent))


# A latent of the task


TASK_LATENT, DRAWS = 16, 2
"""Numbers of u, and its samples for each task in training."""


@dataclass(frozen=True)
class TaskLatent(SimpaLatent):
    """u ~ q(u) from the classes' means; FiLM by u of each block; q(z | u) from the modulated support set.

    The KL is KL[q(u) ‖ N(0, I)] + E_u KL[q(z | u) ‖ N(0, I)]. With `on` false, u is 0: SImPa-latent itself.
    """

    on: bool = True

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        parts, decoder = super().init(model, generator), self._decoder(model)
        reader = self._task_reader(decoder).init(generator, 0.3)
        reader["head.bias"][TASK_LATENT:] = START_LOG_STD
        maps = sum(decoder.network.modulated)
        return parts | {"task": reader, "film": {f"out.{k}": v for k, v in _film_init(2 * maps, generator).items()}}

    def shared_network(self, model: Model) -> None:
        """A task changes it."""

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        draws = DRAWS if self.on else 1
        return {"u": Draw((draws, TASK_LATENT)), "z": Draw((draws, samples // draws, *self._decoder(model).shape))}

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        return NoiseSpec(task=self.prediction_noise(model, self.train_samples, support))

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        logits, kl, prototypes = self.logits(meta, model, task, noise)
        chosen = logits.log_softmax(-1).gather(-1, task.query.y.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
        loss = -(chosen.logsumexp(0) - math.log(len(logits))).mean()
        info = {"loss": loss, "kl": kl, "prototype_loss": prototypes}
        return loss + self.kl_weight * kl + self.prototype_weight * prototypes, info

    def logits(self, meta: Parts, model: Model, task: Task, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """Those of each sample (S, N, C), the KL of all latents, and the loss of prototypes in the embeddings."""
        decoder, weight = self._decoder(model), task.query.x.new_full((), self.kl_weight)
        modulations: list[Any] = [None]
        kl = task.query.x.new_zeros(())
        if self.on:
            q = self._q_of_task(meta, decoder, task.support)
            modulations, kl = [_film(meta["film"], decoder.network, u) for u in q.sample(noise["u"])], q.kl()
        found, losses, kls = [], [], []
        for modulation, z in zip(modulations, noise["z"], strict=True):
            embedding = meta["embedding"]
            support, query = (
                Batch(decoder.network(embedding, batch.x, modulation), batch.y) for batch in (task.support, task.query)
            )
            of_classes = self._posterior(meta, decoder, support, weight)
            found.append(decoder.outputs(meta, of_classes.sample(z), query.x))
            means = class_means(support.x, support.y, model.outputs)
            losses.append(model.loss(prototype_logits(query.x, means), query.y).mean())
            kls.append(of_classes.kl())
        return torch.cat(found), kl + torch.stack(kls).mean(), torch.stack(losses).mean()

    def _task_reader(self, decoder: HeadDecoder) -> Reader:
        return Reader(decoder.sees[0], 2 * TASK_LATENT, self.encoder_width, self.encoder_layers)

    def _q_of_task(self, meta: Parts, decoder: HeadDecoder, support: Batch) -> Latent:
        embedded = Batch(decoder.embed(meta, support.x), support.y)
        _, found = self._task_reader(decoder)(meta["task"], decoder.members(meta, embedded))
        return bounded(*found.mean(0).chunk(2))


def _film_init(units: int, generator: torch.Generator) -> dict[str, Tensor]:
    return linear_init(TASK_LATENT, units, generator, 0.3)


def _film(params: Mapping[str, Tensor], network: Conv4, u: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The scale and shift of the maps of each block."""
    of_blocks = linear(u, params, "out").split([2 * maps for maps in network.modulated])
    return [(1 + scale, shift) for scale, shift in (one.chunk(2) for one in of_blocks)]


# Measurements


def trained(experiment: Experiment) -> tuple[Parts, float]:
    """The meta-parameters, and the CPU seconds of the training."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        meta = train(start_run(Path(folder) / "run", experiment, resume=False), CPU)
        return meta, time.process_time() - began


def covariance(seed: int, updates: int, *, full: bool) -> dict[str, Any]:
    """MSE, NLL and KL on validation tasks of sine-line."""
    experiment = load_preset("quickstart", "simpa-latent", "sine-line")
    kind = FullCovariance if full else SimpaLatent
    method = kind(**asdict(experiment.algorithm))
    experiment = replace(
        experiment, algorithm=method, training=replace(experiment.training, seed=seed, updates=updates)
    )
    meta, seconds = trained(experiment)
    tasks, _ = experiment.data.tasks("validation", CPU).sample(VALIDATION, streams.generator(1, "validation"))
    generator, model = streams.generator(1, "noise"), experiment.model
    scores: dict[str, list[Tensor]] = {"mse": [], "nll": [], "kl": []}
    for number in range(VALIDATION):
        support, query = (Batch(batch.x[number], batch.y[number]) for batch in (tasks.support, tasks.query))
        posterior = method.adapt(meta, model, support, {})
        p = method.predictive(posterior, model, query.x, {"z": torch.randn(32, method.latent, generator=generator)})
        mixture = torch.distributions.Normal(p.means, p.stds).log_prob(query.y) + p.weights.log()
        scores["nll"].append(-mixture.logsumexp(-1).mean())
        scores["mse"].append(((p.weights * p.means).sum(-1) - query.y.squeeze(-1)).square().mean())
        scores["kl"].append(method.posterior_kl(posterior))
    found = {name: mean_over_tasks(torch.stack(values)) for name, values in scores.items()}
    return {"variant": "full" if full else "diagonal", "data": "sine-line", "updates": updates} | _row(
        found, seconds, seed
    )


def task_latent(seed: int, updates: int, *, on: bool) -> dict[str, Any]:
    """Accuracy, NLL and KL on tasks of Omniglot's validation classes."""
    experiment = load_preset("recommended", "simpa-latent", "omniglot")
    options = asdict(experiment.algorithm) | {"cuts": 0, "on": on}
    experiment = replace(
        experiment,
        algorithm=(method := TaskLatent(**options)),
        data=replace(experiment.data, train_way=5, train_query=5),
        training=replace(experiment.training, seed=seed, updates=updates, tasks=8),
    )
    meta, seconds = trained(experiment)
    drawn = experiment.data.prepared().tasks("validation", CPU)
    generator, model = streams.generator(1, "noise"), experiment.model
    scores: dict[str, list[Tensor]] = {"accuracy": [], "nll": [], "kl": []}
    for _ in range(VALIDATION // 50):
        tasks, _facts = drawn.sample(50, generator)
        for number in range(50):
            support, query = (Batch(batch.x[number], batch.y[number]) for batch in (tasks.support, tasks.query))
            noise = {
                name: torch.randn(draw.shape, generator=generator)
                for name, draw in method.prediction_noise(model, 32, 5).items()
            }
            with torch.no_grad():
                logits, kl, _ = method.logits(meta, model, Task(support, query), noise)
            p = logits.softmax(-1).mean(0)
            scores["accuracy"].append((p.argmax(-1) == query.y).double().mean())
            scores["nll"].append(-p.gather(-1, query.y.unsqueeze(-1)).log().mean())
            scores["kl"].append(kl)
    found = {name: mean_over_tasks(torch.stack(values)) for name, values in scores.items()}
    return {
        "variant": "task latent" if on else "classes' latents alone",
        "data": "omniglot",
        "updates": updates,
    } | _row(found, seconds, seed)


def _row(found: Mapping[str, Any], seconds: float, seed: int) -> dict[str, Any]:
    facts = {"seed": seed, "version": __version__, "device": "cpu", "train_cpu_seconds": round(seconds, 1)}
    return {**found, **facts, "validation_tasks": VALIDATION}


def main() -> None:
    """Measure both sides of one variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=("covariance", "task-latent"))
    parser.add_argument("--updates", type=int, help="2,000 for covariance and 300 for task-latent")
    parser.add_argument("--without", action="store_true", help="the library's side alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        for with_it in (False,) if options.without else (False, True):
            if options.variant == "covariance":
                row = covariance(seed, options.updates or 2000, full=with_it)
            else:
                row = task_latent(seed, options.updates or 300, on=with_it)
            print(json.dumps(row), flush=True)
            rows = json.loads(options.results.read_text(encoding="utf-8")) if options.results.is_file() else []
            write_atomically(options.results, "[\n" + ",\n".join(map(json.dumps, [*rows, row])) + "\n]\n")


if __name__ == "__main__":
    main()
