"""The units after the accumulators: SDP (single points), PDP (pooling) and CDP (across
channels)."""
