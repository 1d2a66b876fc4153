"""From a dataset to batches."""
