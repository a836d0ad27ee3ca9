"""Train packs of trials. Reads no files except data sets; uses no MLflow and no Ray."""
