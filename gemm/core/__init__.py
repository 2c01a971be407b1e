"""The definitions that all parts of the package share: problems, operands, plans, the backend interface, errors.
This folder imports only the catalog.
"""

VERSION = "0.1.0"
"""The version of the package, stored here so that modules can read it without an import of the public API."""
