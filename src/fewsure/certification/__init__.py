"""From a trained run to its certificates.

| module | one idea |
|---|---|
| `environment` | which fresh tasks a statement is about, and that they are fresh |
| `predictor` | the predictor that is certified, with its one draw of θ, and its sets and intervals with coverage |
| `theorem` | Theorem 2 of a run, every term with what it is worth |
| `certify` | all statements of one run: `fewsure certify` |

Whoever predicts with coverage needs three functions of `predictor`:

    calibration = calibration_of(run)                      # None if `fewsure certify` has not been run
    shared = shared_noise_of(calibration, experiment)      # θ: adapt with this draw, not with another one
    with_coverage(calibration, experiment, outputs, shot=…, coverage=0.9)

where `outputs` (S, N, C) come from `calibration.samples` functions of a task that was adapted with `shared`.
"""

from fewsure.certification.predictor import calibration_of, shared_noise_of, with_coverage

__all__ = ["calibration_of", "shared_noise_of", "with_coverage"]
