"""A local web page over the same documents: captures in a folder of the user's, an API, and the report pages."""
