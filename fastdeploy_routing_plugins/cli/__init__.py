"""The command line, ``fd-routing``."""
