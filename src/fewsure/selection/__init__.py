"""Which method suits a data set: baselines beside a run, and several methods of which one is selected."""
