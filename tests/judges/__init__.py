"""Other people's libraries as judges of ours, in an environment of their own: `make judges`.

Each judge computes something with our code and with a library, and says by how much they differ.
"""
