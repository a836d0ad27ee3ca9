"""Networks of one's own: built and refused, traced to a graph, trained record by record (docs/networks.md)."""
