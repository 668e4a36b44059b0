"""Record what a trace cannot say, inside the engine: standard library only, the engine imported lazily.

Ships alone too, as a wheel without dependencies (packaging/record), so that a server needs nothing else.
"""
