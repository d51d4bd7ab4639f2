"""The HTTP server for the tasks of a store; needs the extra `serve`."""
