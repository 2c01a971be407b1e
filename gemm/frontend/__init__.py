"""From a caller's arguments to a product and back."""
