"""Exhibits: each a table from tracked runs and a figure from that table."""
