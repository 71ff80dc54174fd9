"""How many samples the moment KL needs: bias and spread of the estimate, and of its gradient, against m_φ.

SImPa is trained on sine-line and adapted to tasks. The KL of each posterior is estimated from m_φ samples again and
again, and compared with one estimate from very many.

    python notebook/kl_samples.py
"""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import take
from fewsure.evaluation.evaluate import shared_noise, unseen_block
from fewsure.networks.weights import flatten, weight_count
from fewsure.posteriors.implicit import ImplicitPosterior
from fewsure.report.drawing import WIDTH, figure_png, tidy
from fewsure.theory.divergences import moment_kl, moment_log_bias
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.types import Params
from fewsure.version import __version__

HERE = Path(__file__).resolve().parent
SAMPLES = (4, 8, 16, 32, 64, 128, 256)
MANY = 8192
"""Samples of the estimate that the others are compared with."""
TASKS, REPEATS = 5, 40
UPDATES = 400
SEED = 0


def main() -> None:
    """Train, measure, write the results and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=HERE / "kl-samples.json", help="where they go")
    options.add_argument("--page", type=Path, default=HERE / "kl-samples.md", help="where the page goes")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    rows = measure(*adapted_posteriors(UPDATES, TASKS))
    facts = {"seed": SEED, "version": __version__, "device": "cpu", "seconds": round(time.perf_counter() - began, 1)}
    settings = {"updates": UPDATES, "tasks": TASKS, "repeats": REPEATS, "reference_samples": MANY}
    record = {"rows": rows, **settings, **facts}
    write_atomically(chosen.results, json.dumps(record, indent=1) + "\n")
    write_page(record, chosen.page)


def adapted_posteriors(updates: int, tasks: int) -> tuple[Simpa, ImplicitPosterior, list[Params]]:
    """SImPa after so many updates of its preset for a CPU, and its posteriors of unseen tasks."""
    experiment = load_preset("quickstart", "simpa", "sine-line")
    training = dataclasses.replace(experiment.training, updates=updates, seed=SEED)
    algorithm = dataclasses.replace(_simpa(experiment), weight_noise=0.0)  # the samples of the generator alone
    experiment = dataclasses.replace(experiment, algorithm=algorithm, training=training)
    with tempfile.TemporaryDirectory() as folder:
        meta = train(Run.create(Path(folder) / "run", experiment), torch.device("cpu"))
    simpa, device = _simpa(experiment), torch.device("cpu")
    block = unseen_block(experiment, 0, SEED, "validation", device)
    shared = shared_noise(experiment, SEED, "validation", device)
    found = []
    for number in range(tasks):
        one = take(block, number)
        adapted = simpa.adapt(meta, experiment.model, one.task.support, shared | one.noise)
        found.append(adapted["generator"])
    return simpa, simpa.posterior(experiment.model), found


def _simpa(experiment: Experiment) -> Simpa:
    assert isinstance(experiment.algorithm, Simpa)
    return experiment.algorithm


def measure(simpa: Simpa, family: ImplicitPosterior, posteriors: list[Params]) -> list[dict[str, Any]]:
    """A row for each m_φ: the means over tasks of what the estimates are off by."""
    generator = streams.generator(SEED, "kl-samples")
    references = [_estimate(simpa, family, posterior, MANY, generator) for posterior in posteriors]
    rows = []
    for samples in SAMPLES:
        bias, plug_in, spread, error = [], [], [], []
        correction = moment_log_bias(samples, weight_count(family.network))
        for posterior, (kl, gradient) in zip(posteriors, references, strict=True):
            found = [_estimate(simpa, family, posterior, samples, generator) for _ in range(REPEATS)]
            values = torch.stack([value for value, _ in found]).double()
            bias.append(float((values.mean() - kl) / kl))
            plug_in.append(float((values.mean() + correction - kl) / kl))
            spread.append(float(values.std() / kl))
            error.append(sum(float((other - gradient).norm() / gradient.norm()) for _, other in found) / REPEATS)
        row = {"bias": bias, "bias_without_correction": plug_in, "spread": spread, "gradient_error": error}
        rows.append({"samples": samples} | {name: sum(values) / len(values) for name, values in row.items()})
    return rows


def _estimate(
    simpa: Simpa, family: ImplicitPosterior, posterior: Params, samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The KL from so many samples, and its gradient in λ."""
    z = torch.rand(samples, family.latent, generator=generator)
    compute = torch.func.grad_and_value(lambda at: moment_kl(family.sample(at, {"z": z}), simpa.sigma_w).sum())
    gradient, kl = compute(posterior)
    return kl, flatten(gradient)


def write_page(record: dict[str, Any], page: Path) -> None:
    """The page, and its figure beside it."""
    figures = page.parent / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    write_atomically(figures / "kl-samples.png", figure_png(_figure(record["rows"])))
    lines = [
        "# How many samples the KL needs",
        "",
        "Made by `python notebook/kl_samples.py`, together with the JSON of every figure; edit neither by hand.",
        "",
        f"SImPa after {record['updates']} updates of its `quickstart` preset on sine-line, without weight noise,",
        f"adapted to {record['tasks']} unseen tasks. The KL is estimated {record['repeats']} times from m_φ samples,",
        f"and compared with one estimate from {record['reference_samples']:,}. Shares of that estimate, and of its",
        "gradient's norm; means over the tasks.",
        "",
        "| m_φ | bias | bias without the correction | standard deviation | error of the gradient |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row['samples']} | {row['bias']:+.2%} | {row['bias_without_correction']:+.2%} | {row['spread']:.2%} "
            f"| {row['gradient_error']:.0%} |"
            for row in record["rows"]
        ),
        "",
        "![bias, spread and error of the gradient over the number of samples](figures/kl-samples.png)",
        "",
        "The correction is exact for a Gaussian; the generator's samples are not. What a training step sees of the KL",
        "is its gradient.",
        "",
    ]
    write_atomically(page, "\n".join(lines))


def _figure(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    values, gradients = figure.subplots(1, 2)
    samples = [row["samples"] for row in rows]
    for name, label in {
        "bias": "bias",
        "bias_without_correction": "bias without correction",
        "spread": "standard deviation",
    }.items():
        values.plot(samples, [abs(row[name]) for row in rows], "o-", label=label)
    values.set(xscale="log", yscale="log", xlabel="m_φ", ylabel="share of the KL")
    values.legend(frameon=False, fontsize="small")
    gradients.plot(samples, [row["gradient_error"] for row in rows], "o-")
    gradients.set(xscale="log", yscale="log", xlabel="m_φ", ylabel="error of the gradient, share of its norm")
    for axes in (values, gradients):
        tidy(axes)
    return figure


if __name__ == "__main__":
    main()
