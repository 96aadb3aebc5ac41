"""The methods BiLA is held against, one file each."""
