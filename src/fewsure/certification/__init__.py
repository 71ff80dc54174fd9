"""From a trained run to its certificates, and to predictions with coverage:

    calibration = calibration_of(run, shot=…)         # None if `fewsure certify` has not been run
    draws = draws_of(calibration, experiment)         # adapt and predict with these random numbers, not with others
    with_coverage(calibration, experiment, outputs, shot=…, coverage=0.9)

where `outputs` (S, N, C) come from the functions of a task that was adapted and predicted with `draws`.
"""

from fewsure.certification.predictor import calibration_of, draws_of, with_coverage

__all__ = ["calibration_of", "draws_of", "with_coverage"]
