"""One file per layer family: how it is planned, computed, computed for mixed batches, measured and priced."""
