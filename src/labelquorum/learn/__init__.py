"""Chunk in, labels and confusion matrices out."""
