"""The `freewheel` command: one file per command.
Takes words from the terminal, gives typed settings to the part that does the work."""
