"""Everything that times products and draws the times."""
