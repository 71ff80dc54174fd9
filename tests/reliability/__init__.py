"""What it takes to trust a long run: faults, full disks, several processes, long runs and bad input.

`python -m tests.reliability PART` runs one part at full length and prints what it found as JSON. `make soak` does all.
The tests call the same functions with small numbers.
"""
