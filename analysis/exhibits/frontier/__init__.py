"""The privacy-utility frontier: its points, its figure, and how good it is as a whole."""
