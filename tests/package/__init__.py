"""The package as it is published: its files, its extras, its public names, and the steps of a release."""
