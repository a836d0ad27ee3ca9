"""Public maps of single records to features: what they are, and the cache that keeps them."""
