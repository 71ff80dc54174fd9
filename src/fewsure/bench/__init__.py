"""How fast training is: the same meta-updates as `fewsure train` makes, timed on synthetic data with fresh tasks."""
