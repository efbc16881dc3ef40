"""What is known of each NPU, one folder each; none of them knows another."""
