"""What every part shares: problems, operands, plans, the interface of backends, errors. Imports the catalog only."""
