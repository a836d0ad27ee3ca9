"""From tracked runs to tables and figures. Knows the tracking store and the configuration, not how trials train."""
