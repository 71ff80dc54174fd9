"""Training: the meta-step, the loop around it, and the folder a run lives in."""
