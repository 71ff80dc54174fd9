"""What runs found, as figures, tables and one page."""
