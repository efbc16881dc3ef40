"""Bit-field register maps: fields, their meaning, maps, the tables and formats they are kept in."""
