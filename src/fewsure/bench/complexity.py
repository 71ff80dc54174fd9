"""The count of the paper's complexity appendix: the cost of an update, in passes over one number.

With n base weights and n′ generator weights,

    deterministic    (N_lower m⁽ᵗ⁾ + m⁽ᵛ⁾ T) n                                        100 n in its practical setting
    Gaussian         m_w (N_lower (m⁽ᵗ⁾ + 1) + T (m⁽ᵛ⁾ + 1)) n                         440 n
    SImPa            m_θ (N_lower (m_w (m⁽ᵗ⁾ + 1) + 3 N_φ m_φ) + T (m⁽ᵛ⁾ + 1)) n′       125 n′

(it lists N_φ twice; the second one, 256, is m_φ, which it then takes as parallel). m_θ, samples of θ, is 1 here
as it is there: more of them multiply everything. The practical setting is one of 5 support and 15 query points, T = 5,
five inner steps and four samples of w:

>>> from dataclasses import replace
>>> from fewsure.training.experiment import load_preset
>>> def practical(method, **options):
...     base = load_preset("recommended", method, "sine-line")
...     data, training = replace(base.data, query=15), replace(base.training, tasks=5)
...     return replace(base, algorithm=replace(base.algorithm, inner_steps=5, **options), data=data, training=training)
>>> deterministic(practical("maml")) / 1761, gaussian(practical("vampire", train_samples=4)) / 1761
(100.0, 440.0)

and for SImPa it takes one sample of w, and all m_φ as one:

>>> options = {"latent": 128, "generator_hidden": (256, 512), "kl": "critic", "kl_samples": 4, "weight_noise": 0.0}
>>> weights = 128 * 256 + 256 + 256 * 512 + 512 + 512 * 1761 + 1761
>>> implicit(practical("simpa", train_samples=1, **options)) / weights - 5 * 3 * (4 - 1)
125.0
"""

from typing import Any

from fewsure.networks.weights import weight_count
from fewsure.training.experiment import Experiment


def deterministic(experiment: Experiment) -> float:
    """The count of a method with one network for a task."""
    algorithm, data = _parts(experiment)
    passes = algorithm.inner_steps * data.support_size + data.query_size * experiment.training.tasks
    return float(passes * weight_count(experiment.model.network))


def gaussian(experiment: Experiment) -> float:
    """The count of a method with a Gaussian posterior."""
    algorithm, data = _parts(experiment)
    passes = algorithm.inner_steps * (data.support_size + 1) + experiment.training.tasks * (data.query_size + 1)
    return float(algorithm.train_samples * passes * weight_count(experiment.model.network))


def implicit(experiment: Experiment) -> float:
    """The count of SImPa."""
    algorithm, data = _parts(experiment)
    critic = 3 * algorithm.critic_steps * algorithm.kl_samples if algorithm.kl != "none" else 0
    lower = algorithm.inner_steps * (algorithm.train_samples * (data.support_size + 1) + critic)
    passes = lower + experiment.training.tasks * (data.query_size + 1)
    return float(passes * weight_count(algorithm.posterior(experiment.model).generator))


def _parts(experiment: Experiment) -> tuple[Any, Any]:
    return experiment.algorithm, experiment.data
