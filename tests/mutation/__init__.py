"""Mutation testing: small changes of a module, each of which a test must notice. `python -m tests.mutation --help`."""
