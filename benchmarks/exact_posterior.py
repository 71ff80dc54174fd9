"""What the exact posterior scores under the headline protocol of sine-line: the reference for any method's figures.

It knows how tasks are made: functions drawn from the task distribution are weighted by the likelihood of a support set,
and 32 of them are drawn by weight. As in the protocol no noise is added to what they predict. So even this posterior
has a calibration error: its spread is that of the functions, while labels have noise on top.

    python benchmarks/exact_posterior.py > results/exact_posterior.json
"""

import json

import torch

from fewsure import streams
from fewsure.data.sine_line import Functions, SineLine
from fewsure.evaluation import GRID, SAMPLES
from fewsure.metrics.calibration import calibration_errors, quantile_reliability
from fewsure.metrics.scores import mean_squared_error, mixture_nll
from fewsure.metrics.summary import calibration_intervals, mean_over_tasks

TASKS = 1000
DRAWN = 200_000
"""Functions of the task distribution that are weighted."""


def main() -> None:
    """Print the figures as JSON."""
    torch.set_num_threads(1)
    data = SineLine()
    generator = streams.generator(0, "exact-posterior")
    prior = data.functions(DRAWN, generator)
    tasks, truth = data.sample_with_truth(TASKS, generator, GRID)
    errors, likelihoods, reliabilities = [], [], []
    for task in range(TASKS):
        x, y = (part[task].squeeze(-1) for part in tasks.support)
        log_weights = -0.5 * ((prior(x.expand(DRAWN, -1)) - y) / data.noise_std).square().sum(1)
        chosen = torch.multinomial(log_weights.softmax(0), SAMPLES, replacement=True, generator=generator)
        posterior = Functions(*(parameter[chosen] for parameter in prior))
        at_query = posterior(tasks.query.x[task].squeeze(-1).expand(SAMPLES, -1)).unsqueeze(-1)
        at_grid = posterior(truth.x[task].squeeze(-1).expand(SAMPLES, -1))
        errors.append(mean_squared_error(at_query, tasks.query.y[task]))
        likelihoods.append(mixture_nll(at_query, tasks.query.y[task], data.noise_std))
        reliabilities.append(quantile_reliability(at_grid, truth.y[task].squeeze(-1), data.noise_std))
    reliability = torch.stack(reliabilities)
    ece, mce = calibration_errors(reliability.double().mean(0))
    intervals = calibration_intervals(reliability)
    result = {
        "tasks": TASKS,
        "samples": SAMPLES,
        "mse": mean_over_tasks(torch.stack(errors)),
        "nll": mean_over_tasks(torch.stack(likelihoods)),
        "ece": float(ece),
        "ece_ci95": intervals[0],
        "mce": float(mce),
        "mce_ci95": intervals[1],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
