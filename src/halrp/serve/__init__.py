"""Predictions for the tasks of one base, in memory or in a store."""
