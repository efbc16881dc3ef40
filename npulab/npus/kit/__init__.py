"""What every NPU's folder needs, once: tables, values by name, memory by address, lowering."""
