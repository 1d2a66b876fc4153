"""Pictures: what a file holds, bytes to pixels, pixels to bytes."""
