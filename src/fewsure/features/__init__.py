"""Features for few-shot learning: a residual network, trained as a plain classifier on the training classes alone."""
