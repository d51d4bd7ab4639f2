"""The choices of the method: scales, decomposition, importance, allocation, compression, and their presets."""
