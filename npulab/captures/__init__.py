"""Records: captures and sweeps, their targets, the folders they lie in, devices."""
