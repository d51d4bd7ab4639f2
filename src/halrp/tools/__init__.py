"""What a user asks of a model or a store: explain, inspect, verify, export."""
