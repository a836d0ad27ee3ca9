"""Doubts about the numbers of a report: checks over its runs, and the comparisons that they affect."""
