"""Tools for every other room: files, processes, text; the standard library only."""
