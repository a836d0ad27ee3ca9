"""Learning: how a pack of trials trains. No files but data sets, no MLflow, no Ray."""
