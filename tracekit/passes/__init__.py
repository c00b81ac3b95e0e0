"""Model passes (steps), found without any marker: one module per family of dialects."""
