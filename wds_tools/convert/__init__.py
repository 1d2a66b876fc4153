"""From a tree of images to a dataset."""
