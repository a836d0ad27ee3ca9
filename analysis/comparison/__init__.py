"""Compare two experiments: match their trials, and report the differences."""
