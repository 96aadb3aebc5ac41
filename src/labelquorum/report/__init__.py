"""A page about a stream or a model: HTML with its pictures inside."""
