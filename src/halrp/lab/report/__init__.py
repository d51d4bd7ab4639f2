"""Records → one self-contained page, and the same tables and figures as files."""
