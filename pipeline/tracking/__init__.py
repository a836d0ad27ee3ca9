"""The tracking store: the records of all trials, in MLflow. Only `backend` imports MLflow.

`Reader` reads a store and changes nothing; `Store` is a reader that also writes.
"""
