"""The privacy-utility frontier: its points, its figure, and its hypervolume."""
