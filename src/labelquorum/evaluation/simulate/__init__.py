"""Simulated crowds: the truth and every confusion matrix are known."""
