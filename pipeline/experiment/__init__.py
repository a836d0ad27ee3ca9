"""Experiments: from a file to its trials, with the rules of search, cost and report."""
