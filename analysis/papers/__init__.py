"""Exhibits of papers, registered as those of a plugin would be."""
