"""The Learner: train on tasks, adapt to a few examples, predict with uncertainty.

| module | one idea |
|---|---|
| `learner` | options, training, saving and loading |
| `predictor` | a trained run, ready to adapt; nothing changes it |
| `adapted` | one task after adapting: predictions, coverage, a small file |
| `groups` | many tasks at a time, in vectorised batches |
| `group_files`, `group_ray` | files of many tasks, on one machine or on Ray |
| `prediction` | what is predicted, and how sure it is |
| `inputs` | arrays of any kind → what networks see |
| `labels` | labels of any kind ↔ class numbers |
"""

from fewsure.learner.adapted import Adapted
from fewsure.learner.learner import Learner, load
from fewsure.learner.prediction import ClassPrediction, ValuePrediction

__all__ = ["Adapted", "ClassPrediction", "Learner", "ValuePrediction", "load"]
