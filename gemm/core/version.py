"""The version of the package, in a module of its own so that no module has to import the public API for it."""

VERSION = "0.1.0"
