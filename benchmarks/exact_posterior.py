"""What the exact posterior scores under the headline protocol of sine-line: the reference for any method's figures.

It knows how tasks are made: functions drawn from the task distribution are weighted by the likelihood of a support set,
and 32 of them are drawn by weight. As in the protocol no noise is added to what they predict. So even this posterior
has a calibration error: its spread is that of the functions, while labels have noise on top.

    python benchmarks/exact_posterior.py > results/exact_posterior.json
"""

import json
import time
from functools import partial

import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.core.vectorise import draw_per_task, take
from fewsure.data.sets.sine_line import PRIOR, Functions, SineLine
from fewsure.evaluation.evaluate import SAMPLES
from fewsure.evaluation.scoring.predict import Predict
from fewsure.evaluation.scoring.regression import RegressionScorer
from fewsure.version import __version__

TASKS = 1000
SEED = 0


def main() -> None:
    """Print the figures as JSON."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    data = SineLine()
    scorer = RegressionScorer(data.noise_std)
    generator = streams.generator(SEED, "exact-posterior")
    prior = data.functions(PRIOR, generator)
    drawn = data.sample(TASKS, generator)
    noise = draw_per_task(scorer.draws, TASKS, generator)
    each = []
    for number in range(TASKS):
        (task, facts), own = take(drawn, number), take(noise, number)
        posterior = prior.given(task.support, data.noise_std, SAMPLES, generator)
        each.append(scorer.score(Predict(partial(values, posterior)), task, facts, own))
    records = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    facts_of_run = {"seed": SEED, "version": __version__, "device": "cpu"}
    result = {"tasks": TASKS, "samples": SAMPLES, **scorer.summarise([records]), **facts_of_run}
    print(json.dumps(result | {"seconds": round(time.perf_counter() - began, 1)}, indent=1))


def values(functions: Functions, x: Tensor) -> Tensor:
    """At inputs (N, 1): (S, N, 1)."""
    return functions(x.squeeze(-1).expand(SAMPLES, -1)).unsqueeze(-1)


if __name__ == "__main__":
    main()
