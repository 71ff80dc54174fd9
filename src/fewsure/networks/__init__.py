"""Base networks as functions of their weights. They hold hyper-parameters and no state."""
