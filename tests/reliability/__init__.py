"""What it takes to trust a long run: faults, full disks, several processes and bad input.

The tests call these functions with small numbers, and `notebook/reliability.py` at full length.
"""
