"""A report turns an account into a document, and a document into text, CSV or Markdown."""
