"""Results of runs as figures, tables and one page."""
