"""What was recorded: captures and sweeps, the targets they are of, the folders they lie in,
devices."""
