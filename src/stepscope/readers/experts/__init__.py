"""Expert token counts: files of the SGLang recorder, and our own markers and step log records."""
