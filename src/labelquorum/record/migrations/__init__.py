"""How the tables of a store came to be what they are: one step a file."""
