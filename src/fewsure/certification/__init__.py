"""From a trained run to its certificates.

| module | one idea |
|---|---|
| `freshness` | what a run was trained on, recorded with it, and that nothing of it is certified with |
| `environment` | which fresh tasks a statement is about |
| `predictor` | the predictor that is certified, with its random numbers, and its sets and intervals with coverage |
| `theorem` | Theorem 2 of a run, every term with what it is worth |
| `certify` | all statements of one run: `fewsure certify` |

Whoever predicts with coverage needs three functions of `predictor`:

    calibration = calibration_of(run)                 # None if `fewsure certify` has not been run
    draws = draws_of(calibration, experiment)         # adapt and predict with these random numbers, not with others
    with_coverage(calibration, experiment, outputs, shot=…, coverage=0.9)

where `outputs` (S, N, C) come from the functions of a task that was adapted and predicted with `draws`.
"""

from fewsure.certification.predictor import calibration_of, draws_of, with_coverage

__all__ = ["calibration_of", "draws_of", "with_coverage"]
