"""The one pipeline, as a list of steps: `steps.STEPS` reads as its table of contents."""
