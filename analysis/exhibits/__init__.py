"""Exhibits of a report: each makes a table from tracked runs, and a figure from this table."""
