"""A model as halrp sees it: what happens to each parameter, the frozen base, and tasks on top of it."""
