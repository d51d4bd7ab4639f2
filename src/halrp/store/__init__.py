"""Tasks on disk: atomic files, the task file, the manifest and the store."""
