"""Raw records: their schema, metrics and aggregation. Knows no method."""
