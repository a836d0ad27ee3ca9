"""Training in integers: every sum over records is exact, so that its bits are the same on every processor."""
