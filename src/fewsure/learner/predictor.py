"""A trained run, ready to adapt to tasks. Nothing changes it, so that threads may share it."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fewsure import streams
from fewsure.algorithms.protonet import ProtoNet
from fewsure.certification.predictor import CALIBRATION, calibration_of, checkpoint_digest, draw_shared, shared_noise_of
from fewsure.conformal import Calibration
from fewsure.data.scale import Scale
from fewsure.errors import FewsureError
from fewsure.evaluation import SAMPLES
from fewsure.experiment import Experiment
from fewsure.learner.inputs import scale_of
from fewsure.noise import with_noise_level
from fewsure.training.runs import Run
from fewsure.types import Batch, Model, Noise, Parts
from fewsure.vectorise import draw_noise, draw_per_task

SEED = 0
"""Of the noise of adaptation and prediction: the same call gives the same numbers."""


@dataclass(frozen=True)
class Predictor:
    """Meta-parameters with all that belongs to them."""

    run: Run
    experiment: Experiment
    """With a known level of noise."""
    meta: Parts
    device: torch.device
    digest: str
    """Of the checkpoint: what is made by this predictor belongs to it."""

    @classmethod
    def of_run(cls, run: Run, device: torch.device) -> "Predictor":
        """The predictor of a run's last checkpoint."""
        digest = checkpoint_digest(run)
        return cls(run, with_noise_level(run, device), run.load(device).meta, device, digest)

    @property
    def scale(self) -> Scale:
        return scale_of(self.experiment.data)

    @property
    def noise_std(self) -> float:
        """Of labels, in the user's unit; 0 for classes."""
        return float(getattr(self.experiment.data, "noise_std", None) or 0.0)

    @property
    def calibration(self) -> Calibration | None:
        """What `fewsure certify` has found for this run, if it has been run."""
        path = self.run.folder / CALIBRATION
        return _calibration(self.run, path.stat().st_mtime_ns) if path.is_file() else None

    @property
    def shared(self) -> Noise:
        """What all tasks share (θ): the draw that was certified, if one was, since a guarantee holds for that one."""
        calibration = self.calibration
        if calibration is None:
            drawn = draw_shared(self.experiment, SEED)
            return {name: draw.to(self.device) for name, draw in drawn.items()}
        return shared_noise_of(calibration, self.experiment, self.device)

    def model(self, way: int) -> Model:
        """The model of a task with so many classes, or of a regression task."""
        model = self.experiment.model
        if model.kind == "regression" or way == model.outputs:
            return model
        if isinstance(self.experiment.algorithm, ProtoNet):
            return model._replace(outputs=way)  # it ends before the layer with an output per class
        raise FewsureError(
            f"{self.experiment.algorithm_name} ends in one output per class and was trained for {model.outputs} "
            f"classes, but the support set has {way}; give {model.outputs} classes, train with way={way}, or use "
            "protonet, which takes any number"
        )

    def adapt(self, model: Model, support: Batch, shared: Noise) -> Parts:
        """The posterior of a task."""
        _, noise = draw_noise(self.experiment.algorithm.noise(model), 1, streams.generator(SEED, "adapt"))
        own = {name: draw[0].to(self.device) for name, draw in noise.items()}
        with torch.no_grad():
            posterior = self.experiment.algorithm.adapt(self.meta, model, support, shared | own)
        return {part: {name: value.detach() for name, value in params.items()} for part, params in posterior.items()}

    def prediction_noise(self, model: Model) -> Noise:
        """The random numbers of SAMPLES functions of a task."""
        draws = self.experiment.algorithm.prediction_noise(model, SAMPLES)
        noise = draw_per_task(draws, 1, streams.generator(SEED, "predict"))
        return {name: draw[0].to(self.device) for name, draw in noise.items()}

    def outputs(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        """Outputs (S, N, C) of the sampled functions of a task."""
        with torch.no_grad():
            return self.experiment.algorithm.predict(posterior, model, x, noise)


@lru_cache(maxsize=4)
def _calibration(run: Run, changed: int) -> Calibration | None:
    return calibration_of(run)
