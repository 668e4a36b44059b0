"""Log lines of serving engines (vLLM, SGLang) -> records of key-value pairs; unknown keys are kept."""
