"""The HTTP shell: it mounts the slices' routes and knows nothing of what they do."""
