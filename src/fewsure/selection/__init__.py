"""Which method suits a data set: baselines beside a run, one of several methods, and scores over folds."""
