"""What a task's outputs mean: its loss, its score and the check of its targets, one file per kind of task."""
