"""The definitions that all parts of the package share: problems, operands, plans, the backend interface, errors.
Imports only the catalog.
"""

VERSION = "0.1.0"
"""The version of the package. It is here so that no module has to import the public API for it."""
