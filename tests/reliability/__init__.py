"""What it takes to trust a long run: faults, full disks, several processes, long runs and bad input.

`python -m tests.reliability PART` runs one part at full length and prints what it found as JSON; with `--keep`, the
figures go to results/reliability.json and from there to docs/how-to/long-runs.md. `make soak` does all. The tests
call the same functions with small numbers.
"""
