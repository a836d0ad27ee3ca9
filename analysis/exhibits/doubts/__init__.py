"""What speaks against the numbers of a report: checks over its runs, and what they stand against."""
