"""The privacy-utility frontier: its points, the choice among settings, and its figure."""
