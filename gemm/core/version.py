"""The version of the package: here, so that no module has to import the public face for it."""

VERSION = "0.1.0"
