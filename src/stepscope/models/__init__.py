"""Models: a config.json becomes an `Architecture`, the named dimensions of a decoder and its schedule of layers."""
