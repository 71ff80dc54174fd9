"""Metrics as pure functions: scores of one task, calibration, and summaries over tasks."""
