"""From facts to a model request, at constant cost."""
