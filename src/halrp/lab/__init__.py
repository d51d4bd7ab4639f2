"""Experiments: streams, backbones, methods and records. Imports `halrp`; never imported by it."""
