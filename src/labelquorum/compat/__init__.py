"""Other libraries' dialects: change the import, keep the program."""
