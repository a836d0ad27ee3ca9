"""A laboratory on one Linux machine: hosts with addresses, names, homes and disks of their own, whose links can be cut.

`python -m lab` (or `make lab`) runs the files of experiments/cluster on it, and faults against sweeps.
"""
