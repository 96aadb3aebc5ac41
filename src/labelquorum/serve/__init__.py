"""What was learned, for people and machines: the command line, and a demo."""
