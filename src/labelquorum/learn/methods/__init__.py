"""The methods BiLA is compared with, one file each."""
