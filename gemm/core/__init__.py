"""The definitions that all parts of the package share: problems, operands, plans, the backend interface, errors.
Imports only the catalog.
"""
