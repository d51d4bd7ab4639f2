"""Faults at every step of every operation that writes: kills, full disks, power loss, and changed files."""
