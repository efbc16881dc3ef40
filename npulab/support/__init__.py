"""What every other room may use: files, processes, text; the standard library only."""
