"""Built-in stores; each is a plugin like anybody's."""
