"""Training in integers: every sum over records is exact, so its bits are the same on every processor."""
