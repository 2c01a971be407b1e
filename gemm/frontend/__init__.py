"""The public calls: check a caller's arguments, build the product, and return its result."""
