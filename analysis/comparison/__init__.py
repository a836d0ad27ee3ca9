"""Two experiments side by side: which points match, and what differs."""
