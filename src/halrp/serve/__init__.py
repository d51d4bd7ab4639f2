"""Predictions for the tasks of one base."""
