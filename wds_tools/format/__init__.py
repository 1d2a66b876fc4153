"""The dataset on disk: shards, their indexes, and the manifest."""
