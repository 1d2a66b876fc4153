"""What people do with a dataset that is there."""
