"""The one training loop, its recipe, its batches and its checkpoints."""
